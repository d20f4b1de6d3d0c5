"""From the event stream into the ledger: exactly once in effect.

A batch is acknowledged only after its transaction committed, and a row that is already there is left alone:
whatever is delivered again, to this accountant or another, changes nothing. While Postgres is away the batch
is kept and tried again; unacknowledged, it would also be delivered again if this process died meanwhile.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from goodput_accountant.appending import YIELD_EVERY
from goodput_accountant.ledger import Appended, DeadLetter, Ledger, RefusedError
from goodput_accountant.metrics import Metrics
from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.chain import day_of
from tokenfleet.bus import Fetched
from tokenfleet.bus.codec import decode
from tokenfleet.clock import Clock
from tokenfleet.contracts.requests import Ended
from tokenfleet.errors import ContractError, UnavailableError
from tokenfleet.observability import Observability

log = structlog.get_logger(__name__)

FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 3.0


class Entry(msgspec.Struct, frozen=True):
    """One message and the row it became."""

    message: Fetched
    row: LedgerRow


class Ingest:
    """The handler of the event stream's consumer."""

    def __init__(self, ledger: Ledger, metrics: Metrics, observability: Observability, clock: Clock) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._observability = observability
        self._clock = clock
        self.rows_written = 0

    async def __call__(self, batch: Sequence[Fetched]) -> None:
        """Write a batch; returns once all of it is committed."""
        started_s = self._clock.wall_s()
        entries: list[Entry] = []
        letters: list[DeadLetter] = []
        for number, message in enumerate(batch, 1):
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            try:
                entries.append(Entry(message, self._account(message)))
            except ContractError as error:
                letters.append(_dead_letter(message, str(error)))
        await self._write(entries, letters)
        self._metrics.batch_took(self._clock.wall_s() - started_s)

    def _account(self, message: Fetched) -> LedgerRow:
        if not self._observability.tracing:
            return _row(message)
        attributes = {"messaging.destination.name": message.subject}
        with self._observability.span("ledger.account", message.headers, attributes):
            return _row(message)

    async def _write(self, entries: Sequence[Entry], letters: Sequence[DeadLetter]) -> None:
        rows = [entry.row for entry in entries]
        try:
            appended = await self._append(rows, letters)
        except RefusedError as error:
            await self._write_refused(entries, letters, error)
            return
        self.rows_written += len(appended.event_ids)
        self._metrics.appended(rows, appended.event_ids, appended.dead_letters)
        for letter in letters:
            log.error(
                "event is not accountable; kept in dead_letters",
                stream_sequence=letter.stream_sequence,
                subject=letter.subject,
                reason=letter.reason,
            )

    async def _write_refused(
        self, entries: Sequence[Entry], letters: Sequence[DeadLetter], error: RefusedError
    ) -> None:
        """Halve a batch that Postgres refuses until the row it refuses stands alone."""
        if len(entries) == 1:
            await self._write([], [*letters, _dead_letter(entries[0].message, str(error))])
            return
        middle = len(entries) // 2
        await self._write(entries[:middle], letters)
        await self._write(entries[middle:], [])

    async def _append(self, rows: Sequence[LedgerRow], letters: Sequence[DeadLetter]) -> Appended:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                return await self._ledger.append(rows, letters)
            except UnavailableError:
                # The ledger has said so, once; the batch stays unacknowledged.
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, LONGEST_RETRY_S)


def _row(message: Fetched) -> LedgerRow:
    row = account(decode(message.data, Ended))
    day_of(row)  # a time that is not credible has no place in the ledger
    return row


def _dead_letter(message: Fetched, reason: str) -> DeadLetter:
    return DeadLetter(
        stream_sequence=message.sequence, subject=message.subject, payload=message.data, reason=reason
    )
