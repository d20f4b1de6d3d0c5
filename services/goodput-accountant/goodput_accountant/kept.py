"""Which days of the ledger are still kept row by row, so that no answer leaves out in silence what is not."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from goodput_accountant.questions import BadQuestionError

EPOCH_DAY = date(1970, 1, 1)
DAYS = """
SELECT day, rows, dropped_rows, to_regclass('ledger_' || to_char(day, 'YYYYMMDD')) IS NULL AS missing
FROM ledger_days WHERE ($1::date IS NULL OR day >= $1) AND ($2::date IS NULL OR day <= $2) ORDER BY day
"""

SUMMARISE = """
SELECT brin_summarize_new_values(inhrelid::regclass)
FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid
WHERE inhparent = 'ledger_sequence'::regclass AND indrelid = ANY($1::regclass[])
"""


class KeptDay(msgspec.Struct, frozen=True):
    """A day (UTC, by submission) that ever had rows."""

    day: date
    rows: int
    """All that were ever written."""
    dropped_rows: int
    """The first so many of them are no longer kept."""
    missing: bool
    """Whether it has no partition."""

    @property
    def partition(self) -> str:
        return f"ledger_{self.day:%Y%m%d}"

    @property
    def number(self) -> int:
        """Days since 1970."""
        return (self.day - EPOCH_DAY).days

    @property
    def begin(self) -> datetime:
        return datetime(self.day.year, self.day.month, self.day.day, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        return self.begin + timedelta(days=1)


async def kept_days(connection: Any, from_ns: int | None, to_ns: int | None) -> list[KeptDay]:
    """The days of a span, the earliest first. Whoever names the begin of a span wants all of it.

    Raises:
        BadQuestionError: the partition of a day that should have rows is missing, or the span has a begin and
            rows of it are no longer kept.
    """
    first = None if from_ns is None else _day(from_ns)
    last = None if to_ns is None else _day(to_ns - 1)
    days = [KeptDay(*record) for record in await connection.fetch(DAYS, first, last)]
    lost = [day for day in days if day.missing and day.rows > day.dropped_rows]
    if lost:
        raise BadQuestionError(
            f"The ledger has no partition for {_listed(lost)}, which had {sum(day.rows for day in lost):,} rows: it was "
            "dropped by hand, or a backup is not whole. `tokenfleet audit verify` says what is left; restore it, or ask "
            "for other days."
        )
    dropped = [day for day in days if day.dropped_rows]
    if dropped and from_ns is not None:
        after = dropped[-1].day + timedelta(days=1)
        raise BadQuestionError(
            f"Requests of this span, submitted up to {dropped[-1].day} (UTC), are no longer kept row by row. Ask from "
            f"{after} on."
        )
    return days


async def summarise(connection: Any, days: Sequence[KeptDay]) -> None:
    """Let the block-range indexes of days cover all their rows: Postgres has them do so only now and then, and what
    they do not cover yet is read again by every page. Left out if somebody else is at the table for long."""
    with suppress(asyncpg.LockNotAvailableError):
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '500ms'")
            await connection.execute(SUMMARISE, [day.partition for day in days if not day.missing])


def _day(unix_ns: int) -> date:
    return EPOCH_DAY + timedelta(days=unix_ns // (86_400 * 10**9))


def _listed(days: Sequence[KeptDay]) -> str:
    shown = ", ".join(str(day.day) for day in days[:3])
    return shown if len(days) <= 3 else f"{shown} and {len(days) - 3} more days"
