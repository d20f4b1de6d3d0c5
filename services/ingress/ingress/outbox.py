"""Publishes outcomes until JetStream has them, however long NATS is away. No client waits for this."""

import asyncio

import structlog

from ingress.journal import Journal
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.requests import Ended
from tokenfleet.errors import UnavailableError

log = structlog.get_logger(__name__)

WORKERS = 64
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0


class Outbox:
    """Outcomes on their way. The same outcome may be published twice; its event id makes it one fact."""

    def __init__(self, bus: Bus, journal: Journal) -> None:
        self._bus = bus
        self._journal = journal
        self._queue: asyncio.Queue[tuple[Ended, dict[str, str]]] = asyncio.Queue()

    def start(self) -> None:
        for _ in range(WORKERS):
            self._bus.spawn(self._work())

    def put(self, ended: Ended, headers: dict[str, str] | None = None) -> None:
        """Publish an outcome, with retries. The journal must have it already."""
        self._queue.put_nowait((ended, headers or {}))

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything is stored; False when some is left (the journal keeps it)."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._queue.join()
        except TimeoutError:
            return False
        return True

    async def _work(self) -> None:
        while True:
            ended, headers = await self._queue.get()
            await self._deliver(ended, headers)
            self._queue.task_done()

    async def _deliver(self, ended: Ended, headers: dict[str, str]) -> None:
        subject = subjects.request(ended.site, ended.pool, ended.outcome)
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                await self._bus.publish_acked(subject, ended, ended.event_id, headers=headers)
                break
            except UnavailableError as error:
                log.warning("outcome not stored yet", request_id=ended.request_id, error=str(error))
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)
        try:
            self._journal.settled(ended.request_id)
        except OSError:
            # It will be published again after a restart, as a duplicate.
            log.exception("journal cannot be written", request_id=ended.request_id)
