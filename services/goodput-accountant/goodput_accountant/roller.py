"""Keeping the roll-ups: it follows the chain of each day and adds what is new, one transaction for each step.

Several accountants share the work: who rolls a day up holds its row of `ledger_rolled`, and the others take another day.
Nobody else writes roll-ups of that day, since none is wider than a day.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from goodput_accountant.ledger import Ledger
from goodput_accountant.policy.accounting import UNCLASSIFIED
from goodput_accountant.policy.cover import DAY_S, FINE_S, HOUR_S
from goodput_accountant.policy.rollups import (
    Bucket,
    Group,
    Stored,
    compact,
    joined,
    restored,
    rolled_up,
    stored,
)
from goodput_accountant.rolled import COUNTS, Tail, read_tail, seconds
from tokenfleet.clock import Clock
from tokenfleet.errors import UnavailableError

STEP_ROWS = 2_000
LONGEST_TURN_S = 0.5
BUSY_TURN_S = 0.1
BUSY_ROWS = 2_000
"""Written between two turns, that many say that ingest needs the time more."""
FINE_DAYS = 3
"""The narrowest roll-ups are made for, and kept of, today and so many days before."""

ADD_DAYS = """
INSERT INTO ledger_rolled (day, fine) SELECT day, day >= $1 FROM ledger_days AS d
WHERE NOT EXISTS (SELECT FROM ledger_rolled AS r WHERE r.day = d.day) ON CONFLICT DO NOTHING
"""
# The latest day first: its roll-ups are asked for most, and those of old days are missed by few.
HOLD_DAY = """
SELECT day, r.rows AS rolled, r.fine, d.rows, d.dropped_rows FROM ledger_rolled AS r JOIN ledger_days AS d USING (day)
WHERE r.rows < d.rows ORDER BY day DESC LIMIT 1 FOR UPDATE OF r SKIP LOCKED
"""
MOVE_DAY = "UPDATE ledger_rolled SET rows = $2 WHERE day = $1"
_KEY = "width_s, start_at, site, pool, tenant, request_class, model, time_scale"
_KEYS = """
unnest($1::int[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::float8[])
"""
READ = f"""
SELECT key.place, r.first_ns, r.last_ns, r.figures, r.ttft, r.tpot, r.e2e
FROM {_KEYS} WITH ORDINALITY AS key({_KEY}, place) JOIN ledger_rollups AS r USING ({_KEY})
"""  # noqa: S608
_FIGURES = "first_ns = excluded.first_ns, last_ns = excluded.last_ns, figures = excluded.figures, ttft = excluded.ttft, tpot = excluded.tpot, e2e = excluded.e2e"
WRITE = f"""
INSERT INTO ledger_rollups ({_KEY}, first_ns, last_ns, figures, ttft, tpot, e2e)
SELECT * FROM unnest($1::int[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                     $8::float8[], $9::bigint[], $10::bigint[], $11::bytea[], $12::bytea[], $13::bytea[], $14::bytea[])
ON CONFLICT ({_KEY}) DO UPDATE SET {_FIGURES}
"""  # noqa: S608
FORGET = f"DELETE FROM ledger_rollups WHERE ({_KEY}) IN (SELECT * FROM {_KEYS})"  # noqa: S608
SPANS = f"""
SELECT min(submitted_ns), max(ended_ns) FROM ledger AS one
WHERE submitted_at >= $1 AND submitted_at < $2 AND sequence > $3 AND sequence <= $4
  AND site = $5 AND pool = $6 AND tenant = $7 AND coalesce(request_class, '{UNCLASSIFIED}') = $8 AND model = $9
  AND time_scale = $10 AND {COUNTS}
"""  # noqa: S608


class Roller:
    """Call `turn` again and again."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        written: Callable[[], int] = lambda: 0,
        step_rows: int = STEP_ROWS,
    ) -> None:
        """
        Args:
            ledger: what is rolled up.
            clock: says which day it is, and how long a turn takes.
            written: how many rows this process has written so far.
            step_rows: at most so many in one transaction.
        """
        self._ledger = ledger
        self._clock = clock
        self._written = written
        self._written_before = written()
        self._step_rows = step_rows

    async def turn(self) -> None:
        """Roll up what is new, for some time and not all of it; a Postgres that is away passes."""
        written = self._written()
        busy = written - self._written_before > BUSY_ROWS
        self._written_before = written
        end_s = self._clock.wall_s() + (BUSY_TURN_S if busy else LONGEST_TURN_S)
        try:
            while await self.step() and self._clock.wall_s() < end_s:
                pass
        except UnavailableError:
            return

    async def step(self) -> int:
        """Roll up the next rows of a day that no other accountant is at; how many there were.

        Raises:
            UnavailableError: Postgres is away; nothing is rolled up twice for it.
        """
        today = datetime.fromtimestamp(self._clock.unix_ns() / 1e9, UTC).date()
        async with self._ledger.transaction() as connection:
            await connection.execute(ADD_DAYS, first_fine_day(today))
            day = await connection.fetchrow(HOLD_DAY)
            if day is None:
                return 0
            upto = min(day["rows"], day["rolled"] + self._step_rows)
            tail = await read_tail(connection, day["day"], day["rolled"], upto, self._step_rows)
            widths = (DAY_S, HOUR_S, FINE_S) if day["fine"] else (DAY_S, HOUR_S)
            whole = not day["dropped_rows"]
            await _apply(connection, tail, widths, upto, whole)
            await connection.execute(MOVE_DAY, day["day"], upto)
            return upto - day["rolled"]


async def _apply(connection: Any, tail: Tail, widths: Sequence[int], upto: int, whole: bool) -> None:
    added = await asyncio.to_thread(rolled_up, tail.added, widths)
    removed = rolled_up(tail.removed, widths)
    keys = sorted({*added, *removed})
    old = {
        keys[record[0] - 1]: Stored(*record[1:]) for record in await connection.fetch(READ, *_columns(keys))
    }
    new = await asyncio.to_thread(_together, keys, old, added)
    for key, gone in removed.items():
        left = restored(new[key], key.group) - restored(gone, key.group)
        if left.rows and whole:
            left = msgspec.structs.replace(left, spans=await _spans(connection, key, upto))
        if left.rows:
            new[key] = stored(left)
        else:
            del new[key]
    if empty := [key for key in keys if key not in new]:
        await connection.execute(FORGET, *_columns(empty))
    if new:
        figures = zip(*new.values(), strict=True)
        await connection.execute(WRITE, *_columns([*new]), *map(list, figures))


def _together(
    keys: Iterable[Bucket], old: Mapping[Bucket, Stored], added: Mapping[Bucket, Stored]
) -> dict[Bucket, Stored]:
    return {key: compact(joined([part[key] for part in (old, added) if key in part])) for key in keys}


async def _spans(connection: Any, key: Bucket, upto: int) -> dict[float, tuple[int, int]]:
    """Read again: a row that counts no more may have been the first submitted, or the last to end."""
    bounds = seconds(key.start_s), seconds(key.start_s + key.width_s), 0, upto
    first_ns, last_ns = await connection.fetchrow(SPANS, *bounds, *key.group)
    return {key.group.time_scale: (first_ns, last_ns)}


def _columns(keys: Sequence[Bucket]) -> tuple[list[Any], ...]:
    starts = [seconds(key.start_s) for key in keys]
    groups = ([key.group[place] for key in keys] for place in range(len(Group._fields)))
    return ([key.width_s for key in keys], starts, *groups)


def first_fine_day(today: date) -> date:
    """The first day of which the narrowest roll-ups are kept."""
    return today - timedelta(days=FINE_DAYS)
