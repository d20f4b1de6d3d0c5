"""Runs lines of batches: claims them in small pieces, asks for each, settles what became of it."""

import asyncio
import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING

import structlog

from ingress.batch.asking import Ask, LineAnswer
from ingress.batch.settling import Settling
from ingress.batch.work import Claimed, LineKey, PutBack, Result, Work
from ingress.errors import ApiError
from ingress.policy.batch import lines
from ingress.policy.batch.lines import ENDPOINTS, Response
from ingress.policy.batch.sharing import OpenBatch, Window, allot
from ingress.policy.batch.verdict import Again, judge
from tokenfleet.clock import Clock
from tokenfleet.errors import UnavailableError
from tokenfleet.live import LiveTenants

if TYPE_CHECKING:
    from ingress.batch.metrics import BatchMetrics

log = structlog.get_logger(__name__)

POLL_S = 0.5
"""Between looks for new work and for lines that are not to be run any more."""
GATHER_S = 0.01
"""Places that become free within this are given away together."""
TENANT_UNKNOWN_DELAY_S = 5.0


class Runner:
    """One process's share of the work."""

    def __init__(
        self,
        work: Work,
        ask: Ask,
        tenants: LiveTenants,
        clock: Clock,
        metrics: "BatchMetrics",
        *,
        concurrency: int,
        lease_s: float,
    ) -> None:
        self._work = work
        self._ask = ask
        self._tenants = tenants
        self._clock = clock
        self._metrics = metrics
        self._concurrency = concurrency
        self._renew_every_s = lease_s / 3
        self._settling = Settling(work)
        self._running: dict[LineKey, asyncio.Task[None]] = {}
        self._by_tenant: Counter[str] = Counter()
        self._windows: dict[str, Window] = {}
        self._wake = asyncio.Event()
        self._claiming = concurrency > 0
        self._background: list[asyncio.Task[None]] = []

    @property
    def in_progress(self) -> int:
        return len(self._running)

    def start(self) -> None:
        loops = (self._settling.run(), self._claim_for_ever(), self._watch_leases())
        self._background = [asyncio.create_task(loop) for loop in loops]

    def wake(self) -> None:
        """There may be something to run."""
        self._wake.set()

    def cancel(self, batch_id: str) -> None:
        """Cancel what runs of a batch, now. Its lines are whoever's to close the batch."""
        for key, task in self._running.items():
            if key[0] == batch_id:
                task.cancel()

    def stop_claiming(self) -> None:
        """Let what runs come to its end, and begin nothing new."""
        self._claiming = False

    async def stop(self, timeout_s: float) -> None:
        """Cancel what still runs, and give its lines to the others at once."""
        self._claiming = False
        left = dict(self._running)
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        with contextlib.suppress(UnavailableError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._settling.flush()
                await self._work.settle([], [PutBack(key, 0.0) for key in left])

    # -- claiming

    async def _claim_for_ever(self) -> None:
        while True:
            self._wake.clear()
            try:
                more = await self._claim()
            except UnavailableError:
                more = False
            except Exception:
                log.exception("lines cannot be claimed; trying again")
                more = False
            if more:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()
                    await asyncio.sleep(GATHER_S)

    async def _claim(self) -> bool:
        """Fill the free places; whether there may be more to claim."""
        free = self._concurrency - len(self._running)
        if free <= 0 or not self._claiming:
            return False
        batches = await self._work.open_batches()
        windows = {batch.tenant: self._window(batch.tenant).size for batch in batches}
        weights = {name: tenant.weight for name, tenant in self._tenants.by_name.items() if name in windows}
        by_id = {batch.batch_id: batch for batch in batches}
        begun = 0
        for batch_id, count in allot(free, batches, self._by_tenant, windows, weights).items():
            for claimed in await self._work.claim(by_id[batch_id], count):
                self._begin(by_id[batch_id], claimed)
                begun += 1
        return begun > 0

    def _begin(self, batch: OpenBatch, claimed: Claimed) -> None:
        key = (batch.batch_id, claimed.line)
        # A lease that ran out while Postgres was away may bring back a line that still runs here.
        if key in self._running or not self._claiming:
            return
        self._by_tenant[batch.tenant] += 1
        self._running[key] = task = asyncio.create_task(self._run(key, batch, claimed))

        def ended(_: asyncio.Task[None]) -> None:
            del self._running[key]
            self._by_tenant[batch.tenant] -= 1
            self._wake.set()

        task.add_done_callback(ended)

    def _window(self, tenant: str) -> Window:
        return self._windows.setdefault(tenant, Window(max(1, self._concurrency)))

    # -- one line

    async def _run(self, key: LineKey, batch: OpenBatch, claimed: Claimed) -> None:
        item = await self._outcome(key, batch, claimed)
        if item is not None:
            await self._settling.settled(item)

    async def _outcome(self, key: LineKey, batch: OpenBatch, claimed: Claimed) -> Result | PutBack | None:
        """What became of a line; None: its deadline passed, so that it is the keeper's."""
        tenant = self._tenants.by_name.get(batch.tenant)
        if tenant is None:
            return PutBack(key, TENANT_UNKNOWN_DELAY_S, refused=True)
        line = lines.read(claimed.data)
        try:
            answer = await self._ask(
                tenant,
                ENDPOINTS[batch.endpoint],
                bytes(line.body),
                due_ns=batch.due_ns,
                client_request_id=f"{batch.batch_id}/{claimed.line}",
            )
        except ApiError as error:
            answer = LineAnswer(error.status, "", error.body(), error.retry_after_s)
        except Exception:
            log.exception("line failed", batch=batch.batch_id, line=claimed.line)
            answer = LineAnswer(500, "", ApiError(500, "Ingress failed; its log says why.").body())
        verdict = judge(
            answer.status,
            answer.retry_after_s,
            refusals=claimed.refusals,
            failures=claimed.failures,
            jitter=random.random(),  # noqa: S311 - spreads retries, keeps no secret
        )
        if isinstance(verdict, Again):
            if self._clock.unix_ns() >= batch.due_ns:
                return None
            return self._again(key, batch, verdict)
        self._window(batch.tenant).answered()
        self._metrics.line(succeeded=verdict.succeeded)
        response = Response(answer.status, answer.request_id, lines.one_line(answer.body))
        data = lines.answered(batch.batch_id, claimed.line, line.custom_id, response)
        return Result(key, verdict.succeeded, data)

    def _again(self, key: LineKey, batch: OpenBatch, verdict: Again) -> PutBack:
        if verdict.refused:
            self._window(batch.tenant).refused(self._clock.wall_s())
        self._metrics.put_back(refused=verdict.refused)
        return PutBack(key, verdict.delay_s, refused=verdict.refused, failed=not verdict.refused)

    # -- leases

    async def _watch_leases(self) -> None:
        renewed_s = self._clock.wall_s()
        while True:
            await asyncio.sleep(POLL_S)
            # Those whose result is being written are about to leave in any case.
            running = dict(self._running)
            if not running:
                continue
            try:
                if self._clock.wall_s() - renewed_s >= self._renew_every_s:
                    await self._work.renew(running)
                    renewed_s = self._clock.wall_s()
                mine = await self._work.still_mine(running)
            except UnavailableError:
                continue
            except Exception:
                log.exception("leases cannot be renewed; trying again")
                continue
            for key, task in running.items():
                if key not in mine:
                    task.cancel()
