"""Dropping the rows of days gone by: whole partitions, and only of days that are in the roll-ups from first to last row.

What stays of such a day: its roll-ups, and in `ledger_days` how many rows it had and the hash of the last one. A row that
still comes for it is the next link of that chain, in a new partition, and is dropped in its turn once it is rolled up.
Rows that a later one may still replace (`lost`) are laid aside, so that it can be taken out of the roll-ups then.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import asyncpg
import msgspec
import structlog

from goodput_accountant.appending import COLUMNS, partition_of
from goodput_accountant.ledger import Ledger
from goodput_accountant.policy.cover import FINE_S
from goodput_accountant.roller import first_fine_day
from tokenfleet.clock import Clock
from tokenfleet.errors import UnavailableError

log = structlog.get_logger(__name__)

Fate = Literal["kept", "due", "not rolled up", "dropped"]

LOCK_TIMEOUT = "2s"
"""Whoever reads or writes the ledger meanwhile waits behind a drop that waits: rather try again later."""

BLUR = """
UPDATE ledger_rolled SET fine = false
WHERE day IN (SELECT day FROM ledger_rolled WHERE fine AND day < $1 ORDER BY day LIMIT 50 FOR UPDATE SKIP LOCKED)
RETURNING day
"""
FORGET = """
DELETE FROM ledger_rollups USING unnest($2::date[]) AS gone(day)
WHERE width_s = $1 AND start_at >= gone.day::timestamp AT TIME ZONE 'UTC'
  AND start_at < (gone.day + 1)::timestamp AT TIME ZONE 'UTC'
"""
DUE = "SELECT day FROM ledger_days WHERE day < $1 AND rows > dropped_rows ORDER BY day"
HOLD_DAY = "SELECT rows FROM ledger_days WHERE day = $1 AND rows > dropped_rows FOR UPDATE SKIP LOCKED"
HOLD_ROLLED = "SELECT rows FROM ledger_rolled WHERE day = $1 FOR UPDATE SKIP LOCKED"
DROPPED = "UPDATE ledger_days SET dropped_rows = rows, dropped_head = head WHERE day = $1"
_BOUNDS = "submitted_at >= $1::date::timestamp AT TIME ZONE 'UTC' AND submitted_at < ($1::date + 1)::timestamp AT TIME ZONE 'UTC'"
_LATER = """
(SELECT FROM ledger AS later WHERE later.submitted_at = one.submitted_at AND later.request_id = one.request_id
    AND later.revision > 0)
"""
_COLUMNS = ", ".join(COLUMNS)
LAY_ASIDE = f"""
INSERT INTO ledger_dropped_lost ({_COLUMNS}) SELECT {_COLUMNS} FROM ledger AS one
WHERE {_BOUNDS} AND revision = 0 AND NOT EXISTS {_LATER} ON CONFLICT DO NOTHING
"""  # noqa: S608 - built only from the names of columns
SETTLE = f"DELETE FROM ledger_dropped_lost AS one WHERE {_BOUNDS} AND EXISTS {_LATER}"  # noqa: S608
DAYS = """
SELECT day, d.rows, d.dropped_rows, coalesce(r.rows, 0),
       coalesce(pg_total_relation_size(to_regclass('ledger_' || to_char(day, 'YYYYMMDD'))), 0)
FROM ledger_days AS d LEFT JOIN ledger_rolled AS r USING (day) ORDER BY day
"""


class DayKept(msgspec.Struct, frozen=True):
    """One day of the ledger, and what becomes of it."""

    day: date
    rows: int
    """That were ever committed."""
    dropped_rows: int
    rolled_rows: int
    bytes: int
    """Of the rows that are there, indexes included."""
    fate: Fate


class Retention:
    """Call `sweep` now and then."""

    def __init__(self, ledger: Ledger, clock: Clock, keep_days: int) -> None:
        """
        Args:
            ledger: whose rows are dropped.
            clock: says which day it is.
            keep_days: rows are kept for so many days after the day of their submission; 0: for ever.
        """
        self._ledger = ledger
        self._clock = clock
        self._keep_days = keep_days

    async def sweep(self) -> None:
        """Drop the rows that are due, and the narrowest roll-ups of all but the latest days."""
        today = datetime.fromtimestamp(self._clock.unix_ns() / 1e9, UTC).date()
        try:
            await self._blur(today)
            for day in await self._due(today):
                await self._drop(day)
        except UnavailableError:
            pass  # the ledger has said so; the next sweep goes on

    async def _blur(self, today: date) -> None:
        while True:
            async with self._ledger.transaction() as connection:
                days = [record["day"] for record in await connection.fetch(BLUR, first_fine_day(today))]
                if not days:
                    return
                await connection.execute(FORGET, FINE_S, days)

    async def _due(self, today: date) -> list[date]:
        if not self._keep_days:
            return []
        async with self._ledger.reading() as connection:
            due = await connection.fetch(DUE, first_kept_day(today, self._keep_days))
        return [record["day"] for record in due]

    async def _drop(self, day: date) -> None:
        async with self._ledger.transaction() as connection:
            try:
                async with connection.transaction():
                    rows = await drop_day(connection, day)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                log.info("ledger rows are in use; dropped later", day=str(day))
                return
        if rows is not None:
            log.info("ledger rows dropped, roll-ups kept", day=str(day), rows=rows)


async def drop_day(connection: Any, day: date) -> int | None:
    """Drop the partition of a day that is rolled up; the rows the day has had, or None if it must wait.

    Args:
        connection: in a transaction.
        day: which.

    Raises:
        asyncpg.LockNotAvailableError: somebody reads the ledger for too long.
    """
    await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    rows = await connection.fetchval(HOLD_DAY, day)
    if rows is None or await connection.fetchval(HOLD_ROLLED, day) != rows:
        return None
    await connection.execute(LAY_ASIDE, day)
    await connection.execute(SETTLE, day)
    await connection.execute(DROPPED, day)
    await connection.execute(f"DROP TABLE {partition_of(day)}")
    return rows


async def days_kept(connection: Any, today: date, keep_days: int) -> list[DayKept]:
    """All days there are, and what a sweep would do to them."""
    first = first_kept_day(today, keep_days) if keep_days else date.min
    kept: list[DayKept] = []
    for day, rows, dropped_rows, rolled_rows, size in await connection.fetch(DAYS):
        fate: Fate = "kept"
        if dropped_rows == rows:
            fate = "dropped"
        elif day < first:
            fate = "due" if rolled_rows == rows else "not rolled up"
        kept.append(DayKept(day, rows, dropped_rows, rolled_rows, size, fate))
    return kept


def first_kept_day(today: date, keep_days: int) -> date:
    """The first day whose rows are kept."""
    return today - timedelta(days=keep_days)
