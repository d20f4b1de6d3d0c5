"""The hash chains of the ledger's days, row by row."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import asyncpg

from goodput_accountant.appending import timestamp
from goodput_accountant.policy.chain import CANONICAL, DAY_NS, FIELDS, canonical
from goodput_accountant.policy.chain_check import Break, ChainCheck, DayHead, Link
from goodput_accountant.policy.comparison import DERIVED

DAYS = """
SELECT coalesce(d.day, l.day) AS day, d.rows, d.head, d.dropped_rows, d.dropped_head
FROM ledger_days AS d FULL JOIN (
    SELECT DISTINCT (submitted_at AT TIME ZONE 'UTC')::date AS day FROM ledger
    WHERE ($3::timestamptz IS NULL OR submitted_at >= $3) AND ($4::timestamptz IS NULL OR submitted_at < $4)
) AS l ON d.day = l.day
WHERE ($1::date IS NULL OR coalesce(d.day, l.day) >= $1) AND ($2::date IS NULL OR coalesce(d.day, l.day) <= $2)
ORDER BY 1
"""
ROWS = f"""
SELECT sequence, chain_hash, row_schema, {", ".join((*FIELDS, *DERIVED))} FROM ledger
WHERE submitted_at >= $1 AND submitted_at < $2 ORDER BY sequence, event_id
"""  # noqa: S608 - built only from the names of columns
PREFETCH = 2_000

Progress = Callable[[float], None]


class Chains:
    """Checks every day that has requests of a window; a chain can only be checked whole."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        """
        Args:
            connection: in a transaction that sees rows and heads of one moment.
        """
        self._connection = connection
        self.days = 0
        self.rows = 0

    async def breaks(
        self, from_ns: int | None, to_ns: int | None, progress: Progress
    ) -> AsyncIterator[Break]:
        """Every break, day by day."""
        first, last = _day(from_ns), _day(None if to_ns is None else to_ns - 1)
        bounds = (_midnight(first), _midnight(last and last + timedelta(days=1)))
        days = await self._connection.fetch(DAYS, first, last, *bounds)
        total = sum(max(0, (day["rows"] or 0) - (day["dropped_rows"] or 0)) for day in days)
        for day in days:
            check = ChainCheck(day["day"].isoformat(), _head(day))
            start = datetime.combine(day["day"], time(), UTC)
            end = start + timedelta(days=1)
            async for record in self._connection.cursor(ROWS, start, end, prefetch=PREFETCH):
                for found in check.take(_link(record)):
                    yield found
                self.rows += 1
                if self.rows % PREFETCH == 0:
                    progress(min(1.0, self.rows / max(total, 1)))
            for found in check.finish():
                yield found
            self.days += 1


def _head(day: Any) -> DayHead | None:
    if day["rows"] is None:
        return None
    return DayHead(
        rows=day["rows"],
        head=bytes(day["head"]),
        dropped_rows=day["dropped_rows"],
        dropped_head=bytes(day["dropped_head"]),
    )


def _link(record: Any) -> Link:
    schema = record["row_schema"]
    return Link(
        sequence=record["sequence"],
        chain_hash=bytes(record["chain_hash"]),
        canonical=canonical(record, schema) if schema in CANONICAL else None,
        event_id=record["event_id"],
        request_id=record["request_id"],
        contradiction=_contradiction(record),
    )


def _contradiction(record: Any) -> str:
    for derived, source in (("submitted_at", "submitted_ns"), ("ended_at", "ended_ns")):
        if record[derived] != timestamp(record[source]):
            return (
                f"its {derived} ({record[derived]:%Y-%m-%d %H:%M:%S.%f} UTC) was changed: {source} says "
                f"{timestamp(record[source]):%Y-%m-%d %H:%M:%S.%f} UTC"
            )
    return ""


def date_of(unix_ns: int) -> date:
    """The day (UTC) of a moment."""
    return date(1970, 1, 1) + timedelta(days=unix_ns // DAY_NS)


def _day(unix_ns: int | None) -> date | None:
    return None if unix_ns is None else date_of(unix_ns)


def _midnight(day: date | None) -> datetime | None:
    return None if day is None else datetime.combine(day, time(), UTC)
