"""What the events make of the ledger, in a scratch table beside it.

The table lies in the session's own temporary schema: nobody else sees it, and Postgres drops it with the connection
however that ends.
"""

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from goodput_accountant.appending import timestamp
from goodput_accountant.ledger import REFUSALS
from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.chain import FIELDS, day_of
from goodput_accountant.policy.comparison import DERIVED
from tokenfleet.bus.codec import decode
from tokenfleet.contracts.requests import Ended
from tokenfleet.errors import ContractError
from tokenfleet.event_log import LoggedEvent

ROW = (*FIELDS, *DERIVED)
"""The columns that are compared."""
COLUMNS = (*ROW, "stored_ns", "stored_sequence")
BATCH = 5_000
MOST_SHOWN = 20

CREATE = f"""
CREATE TEMPORARY TABLE audit_rows AS
SELECT {", ".join(ROW)}, 0::bigint AS stored_ns, 0::bigint AS stored_sequence FROM ledger WITH NO DATA
"""  # noqa: S608 - built only from the names of columns


class Unbookable(msgspec.Struct, frozen=True, kw_only=True):
    """An event that no rule makes a row of; the accountant keeps it as a dead letter."""

    stored_sequence: int
    subject: str
    reason: str


class Scratch:
    """Rows rebuilt from events; `create` before anything else."""

    def __init__(self, connection: asyncpg.Connection, from_ns: int | None, to_ns: int | None) -> None:
        """
        Args:
            connection: whose session the table belongs to.
            from_ns: only requests submitted from here on.
            to_ns: and before here.
        """
        self._connection = connection
        self._from_ns, self._to_ns = from_ns, to_ns
        self._events: list[LoggedEvent] = []
        self.events = 0
        self.unbookable = 0
        self.unbookable_examples: list[Unbookable] = []

    async def create(self) -> None:
        await self._connection.execute(CREATE)

    async def add(self, event: LoggedEvent) -> None:
        """Take in a terminal event; rows are written in batches."""
        self.events += 1
        self._events.append(event)
        if len(self._events) >= BATCH:
            await self.flush()

    async def flush(self) -> None:
        """Write what was taken in."""
        events, self._events = self._events, []
        records: list[tuple[LoggedEvent, tuple[Any, ...]]] = []
        for event in events:
            try:
                row = rebuilt(event)
            except ContractError as error:
                self._refuse(event, str(error))
                continue
            if self._within(row):
                records.append((event, _record(row, event)))
        if records:
            await self._copy(records)

    async def analyze(self) -> None:
        """Let Postgres know how much there is, so that it joins well."""
        await self._connection.execute("ANALYZE audit_rows")

    async def _copy(self, records: Sequence[tuple[LoggedEvent, tuple[Any, ...]]]) -> None:
        """Halve a batch that Postgres refuses until the row it refuses stands alone, as the ingest does."""
        try:
            async with self._connection.transaction():
                await self._connection.copy_records_to_table(
                    "audit_rows", records=[record for _, record in records], columns=COLUMNS
                )
        except REFUSALS as error:
            if len(records) == 1:
                self._refuse(records[0][0], f"{type(error).__name__}: {error}")
                return
            middle = len(records) // 2
            await self._copy(records[:middle])
            await self._copy(records[middle:])

    def _within(self, row: LedgerRow) -> bool:
        submitted_ns = row.submitted_ns
        return (self._from_ns is None or submitted_ns >= self._from_ns) and (
            self._to_ns is None or submitted_ns < self._to_ns
        )

    def _refuse(self, event: LoggedEvent, reason: str) -> None:
        self.unbookable += 1
        if len(self.unbookable_examples) < MOST_SHOWN:
            self.unbookable_examples.append(
                Unbookable(stored_sequence=event.sequence, subject=event.subject, reason=reason)
            )


def rebuilt(event: LoggedEvent) -> LedgerRow:
    """The row that the rules make of a terminal event, as the ingest does.

    Raises:
        ContractError: they make none.
    """
    row = account(decode(event.data, Ended))
    day_of(row)
    return row


def _record(row: LedgerRow, event: LoggedEvent) -> tuple[Any, ...]:
    derived = (timestamp(row.submitted_ns), timestamp(row.ended_ns))
    return (*msgspec.structs.astuple(row), *derived, event.time_ns, event.sequence)
