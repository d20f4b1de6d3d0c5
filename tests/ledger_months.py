"""A ledger of any size, made inside Postgres: a month of traffic of several tenants, classes and pools.

Its rows agree with each other as those of real requests do; only their chain hashes are made up, so that ten million of
them take minutes and not hours.
"""

import datetime

import asyncpg

from goodput_accountant.appending import COLUMNS, partition_of
from tokenfleet.clock import SystemClock

FIRST_DAY = datetime.date(2026, 9, 1)
DAYS = 30


class FixedClock(SystemClock):
    """It is always the same moment."""

    def __init__(self, unix_ns: int) -> None:
        super().__init__()
        self._unix_ns = unix_ns

    def unix_ns(self) -> int:
        return self._unix_ns


# What one request is, made from dice that are thrown once for each row.
_REQUESTS = """
SELECT number, moment, floor(12 * pow(d1, 2))::int AS tenant, (ARRAY['interactive', 'batch', 'long_context'])[1 + floor(3 * d2)::int] AS class,
       (ARRAY['llama-70b', 'llama-70b', 'qwen-32b', 'tiny'])[pool] AS model, (ARRAY['@1', '@2', '@1', '@1'])[pool] AS version,
       CASE WHEN d3 < 0.90 THEN 'completed' WHEN d3 < 0.94 THEN 'timed_out' WHEN d3 < 0.97 THEN 'cancelled'
            WHEN d3 < 0.99 THEN 'failed' ELSE 'rejected' END AS outcome,
       200 + floor(6000 * d4 * d4)::bigint AS input, 20 + floor(700 * d5 * d5)::bigint AS output,
       d6 AS reuse, 0.1 * exp(4 * d7) AS ttft, 0.015 * exp(2 * d8) AS tpot, 1 + floor(8 * d9)::int AS engine
FROM (
    SELECT number, $1::date::timestamp AT TIME ZONE 'UTC' + (number - 1) * interval '1 day' / $2::int AS moment,
           1 + floor(4 * random())::int AS pool, random() AS d1, random() AS d2, random() AS d3, random() AS d4,
           random() AS d5, random() AS d6, random() AS d7, random() AS d8, random() AS d9
    FROM generate_series(1, $2::int) AS number
) AS thrown
"""
_FIGURES = f"""
SELECT *, to_char($1::date, 'YYYYMMDD') || lpad(to_hex(number), 8, '0') || substr(md5(number::text || $1::text), 1, 16) AS id,
       outcome = 'completed' AS good, outcome <> 'rejected' AS ran, (reuse * input)::bigint AS reused,
       outcome <> 'rejected' AND (ttft > 4 OR tpot > 0.1) AS slow, ttft + tpot * output AS e2e
FROM ({_REQUESTS}) AS request
"""
FILL = f"""
INSERT INTO ledger ({", ".join(COLUMNS)})
SELECT id || '.end', 1, id, 1, 'client-' || id, 'tenant-' || tenant, class, 'local', model || version, model,
       CASE WHEN ran THEN 'engine-' || engine END, outcome, 'stop', CASE WHEN good THEN 200 ELSE 500 END, true, ran, false,
       (extract(epoch FROM moment) * 1000000)::bigint * 1000, (extract(epoch FROM moment) * 1000000 + e2e * 1000000)::bigint * 1000,
       1.0, input, CASE WHEN ran THEN reused ELSE 0 END, CASE WHEN ran THEN input - reused ELSE 0 END,
       CASE WHEN ran THEN output ELSE 0 END, true, CASE WHEN ran THEN ttft END, CASE WHEN ran THEN tpot END, e2e,
       ttft * 0.9, tpot, 4.0, 0.1, NULL, CASE WHEN outcome = 'cancelled' AND NOT slow THEN NULL ELSE good AND NOT slow END,
       CASE WHEN slow THEN array_remove(ARRAY[CASE WHEN ttft > 4 THEN 'ttft' END, CASE WHEN tpot > 0.1 THEN 'tpot' END], NULL)
            ELSE ARRAY[]::text[] END,
       CASE WHEN good AND NOT slow THEN output ELSE 0 END,
       CASE WHEN NOT ran THEN NULL WHEN NOT good THEN outcome WHEN slow THEN 'late' END,
       CASE WHEN ran AND (slow OR NOT good) THEN input - reused ELSE 0 END,
       CASE WHEN ran AND (slow OR NOT good) THEN output ELSE 0 END, 0, 0, 0.01, 1,
       CASE WHEN ran THEN ttft * 0.5 END, CASE WHEN ran THEN tpot * output * 0.1 END, 0.0, CASE WHEN ran THEN 0.0 END,
       moment, moment + e2e * interval '1 second', 2, number, sha256(int8send(number))
FROM ({_FIGURES}) AS figured ORDER BY number
"""
ADD_DAY = "INSERT INTO ledger_days (day, rows, head) VALUES ($1, $2, sha256(int8send($2)))"


async def fill_day(connection: asyncpg.Connection, day: datetime.date, rows: int) -> None:
    """Put one day's requests, evenly spread, into a ledger that has none of that day."""
    following = day + datetime.timedelta(days=1)
    async with connection.transaction():
        await connection.execute(
            f"CREATE TABLE {partition_of(day)} PARTITION OF ledger "
            f"FOR VALUES FROM ('{day} 00:00:00+00') TO ('{following} 00:00:00+00')"
        )
        await connection.execute(FILL, day, rows, timeout=600)
        await connection.execute(ADD_DAY, day, rows)
    # As autovacuum does it in the life of a ledger.
    await connection.execute(f"VACUUM (ANALYZE) {partition_of(day)}", timeout=600)


def day_number(number: int) -> datetime.date:
    """A day of the month that is filled."""
    return FIRST_DAY + datetime.timedelta(days=number)
