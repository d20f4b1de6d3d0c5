"""Reading roll-ups, and the rows of a day that they do not have yet.

A day's roll-ups have the first rows of its chain, as many as `ledger_rolled` says. What came after them is the tail:
rows to be added, and rows of before that one of the tail replaces.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from goodput_accountant.appending import EPOCH
from goodput_accountant.ledger import as_row
from goodput_accountant.policy.accounting import LedgerRow
from goodput_accountant.policy.chain import DAY_NS, FIELDS
from goodput_accountant.policy.cover import US_PER_S, Piece, Span
from goodput_accountant.policy.rollups import Group, Stored, joined

DAY_US = DAY_NS // 1000
_FIELD_LIST = ", ".join(FIELDS)
# Statements are built only from names of columns; every value is a parameter.
DAYS = """
SELECT day, d.rows, coalesce(r.rows, 0) AS rolled, coalesce(r.fine, true) AS fine, d.dropped_rows
FROM ledger_days AS d LEFT JOIN ledger_rolled AS r USING (day)
WHERE ($1::date IS NULL OR day >= $1) AND ($2::date IS NULL OR day <= $2) ORDER BY day
"""
# So that Postgres hashes them by group, which takes half as long as sorting them.
ROOM = "SET LOCAL work_mem = '64MB'"
BUCKETS = """
SELECT site, pool, tenant, request_class, model, time_scale, min(first_ns), max(last_ns), string_agg(figures, ''::bytea),
       string_agg(ttft, ''::bytea), string_agg(tpot, ''::bytea), string_agg(e2e, ''::bytea)
FROM ledger_rollups
WHERE width_s = $1 AND start_at >= $2 AND start_at < $3
  AND ($4::text IS NULL OR pool = $4) AND ($5::text IS NULL OR tenant = $5)
GROUP BY site, pool, tenant, request_class, model, time_scale
"""
# As the view `ledger_current` has it, at the moment that the chain was as long as $4.
COUNTS = """
NOT (one.revision = 0 AND EXISTS (
    SELECT FROM ledger AS later
    WHERE later.submitted_at >= $1 AND later.submitted_at < $2 AND later.submitted_at = one.submitted_at
      AND later.request_id = one.request_id AND later.revision > 0 AND later.sequence <= $4
))
"""
ADDED = f"""
SELECT {_FIELD_LIST} FROM ledger AS one
WHERE submitted_at >= $1 AND submitted_at < $2 AND sequence > $3 AND sequence <= $4
  AND ($5::text IS NULL OR pool = $5) AND ($6::text IS NULL OR tenant = $6) AND {COUNTS}
LIMIT $7
"""  # noqa: S608
REMOVED = f"""
SELECT {_FIELD_LIST} FROM (
    SELECT {_FIELD_LIST}, submitted_at, sequence FROM ledger
    UNION ALL SELECT {_FIELD_LIST}, submitted_at, sequence FROM ledger_dropped_lost
) AS one
WHERE submitted_at >= $1 AND submitted_at < $2 AND revision = 0 AND sequence <= $3
  AND ($5::text IS NULL OR pool = $5) AND ($6::text IS NULL OR tenant = $6)
  AND EXISTS (
    SELECT FROM ledger AS later
    WHERE later.submitted_at >= $1 AND later.submitted_at < $2 AND later.submitted_at = one.submitted_at
      AND later.request_id = one.request_id AND later.revision > 0 AND later.sequence > $3 AND later.sequence <= $4
  )
LIMIT $7
"""  # noqa: S608


class DayState(msgspec.Struct, frozen=True):
    """One day of the ledger."""

    day: date
    rows: int
    """Committed so far, those that were dropped included."""
    rolled: int
    """Of these, the first so many are in the roll-ups."""
    fine: bool
    """Whether it has roll-ups of the narrowest width."""
    dropped_rows: int

    @property
    def span(self) -> Span:
        start = (self.day - EPOCH.date()).days * DAY_US
        return Span(start, start + DAY_US)


class Tail(msgspec.Struct, frozen=True):
    """What a stretch of a day's chain changes."""

    added: Sequence[LedgerRow]
    removed: Sequence[LedgerRow]
    """Rows of before this stretch that a row in it replaces."""


async def read_days(connection: Any, first: date | None, last: date | None) -> list[DayState]:
    """The days there are, from one to another (inclusive), in order."""
    return [DayState(*record) for record in await connection.fetch(DAYS, first, last)]


async def read_tail(
    connection: Any,
    day: date,
    after: int,
    upto: int,
    most: int,
    pool: str | None = None,
    tenant: str | None = None,
) -> Tail:
    """What the rows of a day's chain after number `after` change, up to number `upto`.

    Args:
        connection: in a transaction.
        day: whose chain.
        after: the last row that was counted before.
        upto: the last row to be counted now.
        most: no more rows than this, either way.
        pool: only rows of this pool.
        tenant: only rows of this tenant.
    """
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    arguments = (start, start + timedelta(days=1), after, upto, pool, tenant, most)
    added = await connection.fetch(ADDED, *arguments)
    removed = await connection.fetch(REMOVED, *arguments) if after else ()
    return Tail(list(map(as_row, added)), list(map(as_row, removed)))


async def read_buckets(
    connection: Any, pieces: Sequence[Piece], pool: str | None = None, tenant: str | None = None
) -> list[tuple[Group, Stored]]:
    """The roll-ups of some stretches of time, those of each group joined."""
    await connection.execute(ROOM)
    parts: dict[Group, list[Stored]] = defaultdict(list)
    # One statement for each piece: of several together Postgres does not know how few roll-ups they are.
    for piece in pieces:
        bounds = moment(piece.span.start), moment(piece.span.end)
        for record in await connection.fetch(BUCKETS, piece.width_s, *bounds, pool, tenant):
            parts[Group(*record[:6])].append(Stored(*record[6:]))
    return [(group, joined(part)) for group, part in parts.items()]


def moment(unix_us: int) -> datetime:
    """As Postgres takes it."""
    return EPOCH + timedelta(microseconds=unix_us)


def seconds(unix_s: int) -> datetime:
    """The same of whole seconds."""
    return moment(unix_s * US_PER_S)
