"""Writes what became of lines, several at a time while the previous write is under way, until it succeeds."""

import asyncio

from ingress.batch.work import PutBack, Result, Work
from tokenfleet.errors import UnavailableError

RETRY_S = 0.5


class Settling:
    """`run` is a background task; `settled` returns once the item is stored."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: list[tuple[Result | PutBack, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()

    async def settled(self, item: Result | PutBack) -> None:
        """Wait until it is written. Being cancelled does not stop the write."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._wake.set()
        await future

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write everything there is, however long Postgres is away."""
        while batch := self._waiting:
            self._waiting = []
            items = [item for item, _ in batch]
            try:
                await self._work.settle(
                    [item for item in items if isinstance(item, Result)],
                    [item for item in items if isinstance(item, PutBack)],
                )
            except UnavailableError:
                self._waiting = batch + self._waiting
                await asyncio.sleep(RETRY_S)
                continue
            except asyncio.CancelledError:
                self._waiting = batch + self._waiting
                raise
            for _, future in batch:
                if not future.done():
                    future.set_result(None)
