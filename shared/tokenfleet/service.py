"""The frame every service runs in: settings, bus, clock, observability, admin endpoint, clean stop."""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog
import uvloop
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tokenfleet.blocks import BlockHasher
from tokenfleet.bus import Bus
from tokenfleet.clock import Clock, SystemClock
from tokenfleet.errors import TokenFleetError
from tokenfleet.logs import configure_logging
from tokenfleet.observability import Observability
from tokenfleet.settings import DEVELOPMENT_BLOCK_SECRET, Settings, load

if TYPE_CHECKING:
    from faststream.nats import NatsBroker

SettingsT = TypeVar("SettingsT", bound=Settings)
StopHook = Callable[[], Awaitable[None]]


class Service(Generic[SettingsT]):
    """What a service's `start` is given."""

    def __init__(self, name: str, settings: SettingsT, bus: Bus) -> None:
        self.name = name
        self.settings = settings
        self.bus = bus
        self.clock: Clock = SystemClock(settings.time_scale)
        self.log = structlog.get_logger(name)
        self.observability = Observability(name, settings.site, settings.replica)
        self.admin_app = web.Application()
        self.health: Callable[[], dict[str, Any]] = dict
        """Extra fields for /health; replace it to say more."""
        self._stop_hooks: list[StopHook] = []
        self._broker: NatsBroker | None = None

    def block_hasher(self) -> BlockHasher:
        """Hashes prompt blocks with the deployment's secret; warns if that is the public one."""
        secret = self.settings.block_secret.get_secret_value()
        if secret == DEVELOPMENT_BLOCK_SECRET:
            self.log.warning(
                "TOKENFLEET_BLOCK_SECRET is not set: block hashes use a public secret, so whoever reads the bus can "
                "test guesses of prompts; set the same secret for every ingress and node agent"
            )
        return BlockHasher(secret.encode())

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a background task until the service stops."""
        self.bus.spawn(coroutine)

    def every(self, wall_seconds: float, function: Callable[[], Awaitable[None]]) -> None:
        """Call an async function periodically; an error is logged and does not end the series."""

        async def loop() -> None:
            while True:
                try:
                    await function()
                except Exception:
                    self.log.exception("periodic task failed", task=getattr(function, "__name__", "?"))
                await asyncio.sleep(wall_seconds)

        self.spawn(loop())

    def on_stop(self, hook: StopHook) -> None:
        """Run before the bus drains; last registered first."""
        self._stop_hooks.append(hook)

    async def broker(self) -> "NatsBroker":
        """The FastStream broker of the control plane; subscribe before `start` returns."""
        if self._broker is None:
            # Imported here: it takes 0.7 s of CPU, and half of the processes have no use for it.
            from tokenfleet.control_plane import connect_broker

            self._broker = await connect_broker(self.settings, self.name)
        return self._broker

    async def start_broker(self) -> None:
        if self._broker is not None:
            await self._broker.start()

    async def stop(self) -> None:
        for hook in reversed(self._stop_hooks):
            try:
                await hook()
            except Exception:
                self.log.exception("stop hook failed")
        if self._broker is not None:
            await self._broker.stop()
        await self.bus.drain()
        self.observability.shutdown()

    async def serve_admin(self) -> web.AppRunner:
        """/health and /metrics on the admin port."""
        self.admin_app.router.add_get("/health", self._health)
        self.admin_app.router.add_get("/metrics", prometheus_metrics)
        runner = web.AppRunner(self.admin_app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self.settings.admin_host, self.settings.admin_port)
        await site.start()
        self.log.info("started", admin=str(runner.addresses[0]), replica=self.settings.replica)
        return runner

    async def _health(self, _: web.Request) -> web.Response:
        connected = self.bus.connected
        body = {
            "service": self.name,
            "nats": "connected" if connected else "away",
            "contract_errors": self.bus.contract_errors,
            **self.health(),
        }
        return web.json_response(body, status=200 if connected else 503)


async def prometheus_metrics(_: web.Request) -> web.Response:
    """All of the process's metrics in Prometheus text format."""
    return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


Start = Callable[[Service[SettingsT]], Awaitable[None]]


async def _run(name: str, settings: SettingsT, start: Start[SettingsT]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stopping.set)
    bus = await Bus.connect(settings, name)
    service = Service(name, settings, bus)
    runner: web.AppRunner | None = None
    try:
        await start(service)
        await service.start_broker()
        runner = await service.serve_admin()
        await stopping.wait()
    finally:
        if runner is not None:
            await runner.cleanup()
        await service.stop()


def run_service(name: str, settings_type: type[SettingsT], start: Start[SettingsT]) -> None:
    """Run a service until SIGINT or SIGTERM; a failure to start exits 1 with one clear line."""
    try:
        settings = load(settings_type)
        configure_logging(name, settings.log_level)
        uvloop.run(_run(name, settings, start))
    except (TokenFleetError, OSError) as error:
        print(json.dumps({"level": "critical", "service": name, "event": str(error)}), file=sys.stderr)
        raise SystemExit(1) from error
