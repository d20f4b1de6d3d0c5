"""The batch API of one ingress: its handlers, its share of the work, and its upkeep."""

import asyncio
import uuid
from typing import Any

from aiohttp import web

from ingress.auth import may_use
from ingress.batch.asking import Ask
from ingress.batch.batches import Batches
from ingress.batch.database import Database
from ingress.batch.files import Files
from ingress.batch.http import BatchHttp
from ingress.batch.keeper import Keeper, rows_kept
from ingress.batch.metrics import BatchMetrics
from ingress.batch.runner import Runner
from ingress.batch.uploads import UploadLimits
from ingress.batch.work import Work
from ingress.gateway import Gateway
from ingress.settings import IngressSettings
from tokenfleet.errors import UnavailableError
from tokenfleet.service import Service

KEEP_EVERY_S = 0.5
SWEEP_EVERY_S = 600.0
STOP_S = 3.0


class BatchService:
    """Make it before the ingress's own stop hook is registered, so that it is closed after the last request."""

    def __init__(self, service: Service[IngressSettings], gateway: Gateway, ask: Ask) -> None:
        self._gateway = gateway
        self._log = service.log
        self._running: _Parts | None = None
        self._kick = asyncio.Event()
        settings = service.settings
        if settings.postgres_dsn is not None:
            database = Database(settings.postgres_dsn.get_secret_value(), settings.ingress_batch_connections)
            self._running = _Parts(database, service, gateway, ask)
            service.spawn(self._keep(self._running))
            service.on_stop(self._stop)

    def add_routes(self, app: web.Application) -> None:
        settings = self._gateway.settings
        limits = UploadLimits(
            file_bytes=settings.ingress_batch_max_file_bytes,
            line_bytes=settings.ingress_max_body_bytes,
            rows=rows_kept(settings.ingress_batch_max_lines),
            chunk_timeout_s=settings.ingress_body_timeout_s,
        )
        parts = self._running
        stores = None if parts is None else (parts.files, parts.batches)
        BatchHttp(
            self._gateway.tenants,
            stores,
            limits,
            on_created=lambda _: self._kick.set(),
            on_cancelled=self._cancelled,
        ).add_routes(app)

    def stop_claiming(self) -> None:
        """This ingress is stopping: begin no more lines."""
        if self._running is not None:
            self._running.runner.stop_claiming()

    def health(self) -> dict[str, Any]:
        """What /health says of batches."""
        if self._running is None:
            return {"postgres": "not configured"}
        return {
            "postgres": "connected" if self._running.database.available else "away",
            "lines_in_progress": self._running.runner.in_progress,
        }

    def _cancelled(self, batch_id: str) -> None:
        if self._running is not None:
            self._running.runner.cancel(batch_id)
        self._kick.set()

    async def _keep(self, parts: "_Parts") -> None:
        """Move batches along whenever there is something to do."""
        await parts.database.connect()
        parts.runner.start()
        swept_s = float("-inf")
        clock = self._gateway.clock
        while True:
            self._kick.clear()
            try:
                while await parts.keeper.step():
                    parts.runner.wake()
                if clock.wall_s() - swept_s >= SWEEP_EVERY_S:
                    await parts.files.sweep()
                    swept_s = clock.wall_s()
            except UnavailableError:
                pass
            except Exception:
                self._log.exception("batches cannot be kept; trying again")
            try:
                async with asyncio.timeout(KEEP_EVERY_S):
                    await self._kick.wait()
            except TimeoutError:
                continue

    async def _stop(self) -> None:
        assert self._running is not None
        await self._running.runner.stop(STOP_S)
        await self._running.database.close()


class _Parts:
    """What there is when there is a database."""

    def __init__(
        self, database: Database, service: Service[IngressSettings], gateway: Gateway, ask: Ask
    ) -> None:
        settings = service.settings

        def servable(name: str, model: str) -> bool:
            tenant, known = gateway.tenants.by_name.get(name), gateway.resolve(model)
            return tenant is not None and known is not None and may_use(tenant, known[0])

        self.database = database
        self.files = Files(
            database, settings.ingress_batch_keep_files_s, settings.ingress_batch_max_stored_bytes
        )
        self.batches = Batches(database, settings.ingress_batch_max_open, settings.time_scale)
        self.keeper = Keeper(
            database,
            servable,
            max_bytes=settings.ingress_batch_max_file_bytes,
            max_lines=settings.ingress_batch_max_lines,
            keep_s=settings.ingress_batch_keep_files_s,
        )
        # Unlike the replica's name, never that of an earlier process.
        owner = f"{settings.replica}-{uuid.uuid4().hex[:12]}"
        self.runner = Runner(
            Work(database, owner, settings.ingress_batch_lease_s),
            ask,
            gateway.tenants,
            service.clock,
            BatchMetrics(service.observability.meter),
            concurrency=settings.ingress_batch_concurrency,
            lease_s=settings.ingress_batch_lease_s,
        )
