"""New rows at the ends of their days' chains: prepared before anything is locked, linked and written under the days' locks."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from goodput_accountant.policy.accounting import LedgerRow
from goodput_accountant.policy.chain import FIELDS, ROW_SCHEMA, START, canonical_values, day_of, link

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Statements are built only from these names; every value is a parameter.
COLUMNS = (*FIELDS, "submitted_at", "ended_at", "row_schema", "sequence", "chain_hash")
YIELD_EVERY = 100
"""Rows prepared before others may go on: Postgres, say, to which the batch before is being sent."""
SAME_REQUEST = timedelta(days=1)
"""Two outcomes under one request id are of the same request if it was submitted so close together by both."""

# In order of days, so that two accountants cannot wait for each other in a circle.
ADD_DAYS = f"""
INSERT INTO ledger_days (day, rows, head) SELECT day, 0, '\\x{START.hex()}'::bytea FROM unnest($1::date[]) AS day ORDER BY day
ON CONFLICT DO NOTHING RETURNING day
"""  # noqa: S608
HOLD_DAYS = "SELECT day, rows, head, dropped_rows FROM ledger_days WHERE day = ANY($1::date[]) ORDER BY day FOR UPDATE"
MOVE_DAY = "UPDATE ledger_days SET rows = $2, head = $3 WHERE day = $1"
THERE = """
SELECT request_id, revision FROM ledger
WHERE request_id = ANY($1::text[]) AND submitted_at >= $2::timestamptz - $4::interval
  AND submitted_at <= $3::timestamptz + $4::interval
"""


class Prepared(msgspec.Struct, frozen=True):
    """A row, ready to be linked and written."""

    key: tuple[str, int]
    """Request and revision."""
    values: tuple[Any, ...]
    times: tuple[datetime, datetime]
    canonical: bytes


async def prepare(rows: Sequence[LedgerRow]) -> dict[date, list[Prepared]]:
    """The rows by day, each request and revision once: all the work that can be done before anything is locked."""
    days: dict[date, list[Prepared]] = defaultdict(list)
    seen: set[tuple[str, int]] = set()
    for number, row in enumerate(rows, 1):
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)
        key = row.request_id, row.revision
        if key not in seen:
            seen.add(key)
            values = msgspec.structs.astuple(row)
            times = timestamp(row.submitted_ns), timestamp(row.ended_ns)
            day_of(row)  # refuses what is not credible
            days[times[0].date()].append(Prepared(key, values, times, canonical_values(values)))
    return days


async def append_rows(connection: Any, days: dict[date, list[Prepared]]) -> frozenset[str]:
    """Put the rows that are new at the ends of their days' chains; the event ids of those.

    Whoever appends to a day holds its row of `ledger_days`: what is there cannot change between looking and writing.
    """
    for day in await connection.fetch(ADD_DAYS, sorted(days)):
        await _create_partition(connection, day["day"])
    heads = await connection.fetch(HOLD_DAYS, sorted(days))
    there = await _there(connection, [row for rows in days.values() for row in rows])
    records: list[tuple[Any, ...]] = []
    for day, count, head, dropped in heads:
        new = [row for row in days[day] if row.key not in there]
        if not new:
            continue
        if count and count == dropped:
            await _create_partition(connection, day)
        hashes = link(head, [row.canonical for row in new])
        records += [
            (*row.values, *row.times, ROW_SCHEMA, place, hash_)
            for place, (row, hash_) in enumerate(zip(new, hashes, strict=True), count + 1)
        ]
        await connection.execute(MOVE_DAY, day, count + len(new), hashes[-1])
    if records:
        await connection.copy_records_to_table("ledger", records=records, columns=COLUMNS)
    return frozenset(record[0] for record in records)


async def _there(connection: Any, rows: Sequence[Prepared]) -> set[tuple[str, int]]:
    """Those requests and revisions that have a row already."""
    submitted = [row.times[0] for row in rows]
    wanted = [row.key[0] for row in rows]
    found = await connection.fetch(THERE, wanted, min(submitted), max(submitted), SAME_REQUEST)
    return {tuple(record) for record in found}


async def _create_partition(connection: Any, day: date) -> None:
    await connection.execute(
        f"CREATE TABLE {partition_of(day)} PARTITION OF ledger "
        f"FOR VALUES FROM ('{day} 00:00:00+00') TO ('{day + timedelta(days=1)} 00:00:00+00')"
    )


def partition_of(day: date) -> str:
    """The name of the table that has the rows of a day."""
    return f"ledger_{day:%Y%m%d}"


def timestamp(unix_ns: int) -> datetime:
    """As Postgres keeps it, at microsecond resolution."""
    return EPOCH + timedelta(microseconds=unix_ns // 1000)
