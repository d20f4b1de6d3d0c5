"""Publishes outcomes until JetStream has them, however long NATS, or the site that keeps one, is away.

No client waits for this, and no outcome for another: one whose site is cut off stands aside until it is tried again.
"""

import asyncio
from dataclasses import dataclass

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


@dataclass(slots=True)
class _Item:
    ended: Ended
    headers: dict[str, str]
    backoff_s: float


class Outbox:
    """Outcomes on their way. The same outcome may be published twice; its event id makes it one fact."""

    def __init__(self, bus: Bus, journal: Journal) -> None:
        self._bus = bus
        self._journal = journal
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()

    def start(self) -> None:
        for _ in range(WORKERS):
            self._bus.spawn(self._work())

    def put(self, ended: Ended, headers: dict[str, str] | None = None) -> None:
        """Publish an outcome, with retries. The journal must have it already."""
        self._queue.put_nowait(_Item(ended, headers or {}, FIRST_BACKOFF_S))

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
            item = await self._queue.get()
            if await self._stored(item):
                self._queue.task_done()
            else:
                asyncio.get_running_loop().call_later(item.backoff_s, self._again, item)
                item.backoff_s = min(item.backoff_s * 2, LONGEST_BACKOFF_S)

    def _again(self, item: _Item) -> None:
        # Put before the old task is done, so that `flush` never sees it gone in between.
        self._queue.put_nowait(item)
        self._queue.task_done()

    async def _stored(self, item: _Item) -> bool:
        ended = item.ended
        subject = subjects.request(ended.site, ended.pool, ended.outcome)
        try:
            await self._bus.publish_acked(subject, ended, ended.event_id, headers=item.headers)
        except UnavailableError as error:
            log.warning("outcome not stored yet", request_id=ended.request_id, error=str(error))
            return False
        try:
            self._journal.settled(ended.request_id)
        except OSError:
            # It will be published again after a restart, as a duplicate.
            log.exception("journal cannot be written", request_id=ended.request_id)
        return True
