"""Waiting until the ledger has taken in what the stream holds."""

import asyncio

from goodput_accountant.main import DURABLE
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.errors import UnavailableError

PATIENCE_S = 60.0
POLL_S = 0.02


async def until_booked(operator: Bus) -> None:
    """Nothing is left to book, twice in a row: a busy NATS counts what it has just stored a moment later.

    Raises:
        TimeoutError: something is left after `PATIENCE_S`, or NATS stays away.
    """
    nothing_left = 0
    async with asyncio.timeout(PATIENCE_S):
        while nothing_left < 2:
            await asyncio.sleep(POLL_S)
            try:
                backlog = await operator.consumer_backlog(subjects.STREAM_REQUESTS, DURABLE)
            except UnavailableError:  # NATS or the accountant is on its way back
                backlog = 1
            nothing_left = 0 if backlog else nothing_left + 1
