"""From the event stream into the ledger: exactly once in effect.

A batch is acknowledged only after its transaction committed, and a row that is already there is left alone:
whatever is delivered again, to this accountant or another, changes nothing. While Postgres is away the batch
is kept and tried again; unacknowledged, it would also be delivered again if this process died meanwhile.
An event that cannot be booked is acknowledged once it is a dead letter; if it cannot be one now, it comes again
later, and what stands behind it does not wait.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from goodput_accountant.appending import YIELD_EVERY
from goodput_accountant.dead_letters import DeadLetters
from goodput_accountant.ledger import Appended, Ledger, RefusedError
from goodput_accountant.metrics import Metrics
from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.chain import day_of
from tokenfleet.bus import Fetched
from tokenfleet.bus.codec import decode
from tokenfleet.clock import Clock
from tokenfleet.contracts.dead_letters import DeadLetter, DeadLetterReason
from tokenfleet.contracts.requests import Ended
from tokenfleet.errors import ContractError, UnavailableError
from tokenfleet.observability import Observability

FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 3.0


class Entry(msgspec.Struct, frozen=True):
    """One message and the row it became."""

    message: Fetched
    row: LedgerRow


class Ingest:
    """The handler of the event stream's consumer."""

    def __init__(
        self,
        ledger: Ledger,
        dead_letters: DeadLetters,
        metrics: Metrics,
        observability: Observability,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._observability = observability
        self._clock = clock
        self.rows_written = 0

    async def __call__(self, batch: Sequence[Fetched]) -> list[int]:
        """Write a batch; returns once all of it is committed, with the sequences that must come again."""
        started_s = self._clock.wall_s()
        entries: list[Entry] = []
        letters: list[DeadLetter] = []
        for number, message in enumerate(batch, 1):
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            try:
                ended = decode(message.data, Ended)
            except ContractError as error:
                letters.append(self._letter(message, "malformed", error))
                continue
            try:
                entries.append(Entry(message, self._account(message, ended)))
            except ContractError as error:
                letters.append(self._letter(message, "not_credible", error))
        letters += await self._write(entries)
        left = await self._dead_letters.store(letters)
        self._metrics.batch_took(self._clock.wall_s() - started_s)
        return [letter.sequence for letter in left]

    def _account(self, message: Fetched, ended: Ended) -> LedgerRow:
        if not self._observability.tracing:
            return _row(ended)
        attributes = {"messaging.destination.name": message.subject}
        with self._observability.span("ledger.account", message.headers, attributes):
            return _row(ended)

    async def _write(self, entries: Sequence[Entry]) -> list[DeadLetter]:
        """Append rows; the letters of those that Postgres refuses, found by halving the batch until one stands alone."""
        if not entries:
            return []
        rows = [entry.row for entry in entries]
        try:
            appended = await self._append(rows)
        except RefusedError as error:
            if len(entries) == 1:
                return [self._letter(entries[0].message, "refused_by_ledger", error)]
            middle = len(entries) // 2
            return await self._write(entries[:middle]) + await self._write(entries[middle:])
        self.rows_written += len(appended.event_ids)
        self._metrics.appended(rows, appended.event_ids)
        return []

    async def _append(self, rows: Sequence[LedgerRow]) -> Appended:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                return await self._ledger.append(rows)
            except UnavailableError:
                # The ledger has said so, once; the batch stays unacknowledged.
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, LONGEST_RETRY_S)

    def _letter(self, message: Fetched, reason: DeadLetterReason, error: Exception) -> DeadLetter:
        return self._dead_letters.letter(message.subject, message.sequence, message.data, reason, error)


def _row(ended: Ended) -> LedgerRow:
    row = account(ended)
    day_of(row)  # a time that is not credible has no place in the ledger
    return row
