"""What people ask of the ledger, of ten million rows in a real Postgres (`make bench-ledger`: 12 GB of disk, half an hour).

Times are those of the accountant's handlers, from the question to the answer; NATS adds about a millisecond.
"""

import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from ledger_months import DAYS, FixedClock, day_number, fill_day
from ledger_questions import NOW_NS, Questions
from rich.console import Console
from rich.table import Table

from goodput_accountant.ledger import Ledger
from goodput_accountant.migrations import migrate
from goodput_accountant.roller import Roller
from goodput_accountant.settings import REPOSITORY_MIGRATIONS
from tokenfleet.contracts.ledger import ReportRequest

ROWS = int(os.environ.get("TOKENFLEET_BENCH_LEDGER", "0"))
BYTES_PER_ROW = 1_200
BAR_S = 0.1
ROUNDS = 15

pytestmark = [
    pytest.mark.skipif(not ROWS, reason="takes half an hour: make bench-ledger"),
    pytest.mark.timeout(7_200),
]

Ask = Callable[[], Awaitable[object]]


async def fill(dsn: str, rows: int) -> str:
    """A month of rows, rolled up as they come; how long that took."""
    await migrate(await asyncpg.connect(dsn), REPOSITORY_MIGRATIONS)
    connection = await asyncpg.connect(dsn)
    ledger = await Ledger.open(dsn)
    roller = Roller(ledger, FixedClock(NOW_NS), step_rows=20_000)
    started_s = time.monotonic()
    filling = asyncio.create_task(fill_days(connection, rows // DAYS))
    rolled, rolling_s = 0, 0.0
    while not filling.done() or rolled < rows // DAYS * DAYS:
        step_started_s = time.monotonic()
        step = await roller.step()
        rolled += step
        rolling_s += time.monotonic() - step_started_s if step else 0.0
        if not step:
            await asyncio.sleep(0.2)
            if filling.done():
                await filling
    await connection.execute("VACUUM (ANALYZE) ledger_rollups", timeout=600)
    size = await connection.fetchval("SELECT pg_database_size(current_database())")
    buckets = await connection.fetch("SELECT width_s, count(*) FROM ledger_rollups GROUP BY 1 ORDER BY 1")
    buckets_size = await connection.fetchval("SELECT pg_total_relation_size('ledger_rollups')")
    await ledger.close()
    await connection.close()
    each = ", ".join(f"{count:,} of {width:,} s" for width, count in buckets)
    return (
        f"{rolled:,} rows, {size / 1e9:.1f} GB in {time.monotonic() - started_s:,.0f} s; rolled up at "
        f"{rolled / rolling_s:,.0f} rows/s beside the writing; roll-ups: {each}, {buckets_size / 1e9:.2f} GB"
    )


async def fill_days(connection: asyncpg.Connection, rows: int) -> None:
    for number in range(DAYS):
        await fill_day(connection, day_number(number), rows)


async def some_ids(dsn: str) -> list[tuple[str, str]]:
    """Ids of requests of all days: ours and the client's."""
    connection = await asyncpg.connect(dsn)
    records = await connection.fetch(
        "SELECT request_id, client_request_id FROM ledger TABLESAMPLE SYSTEM (0.5) LIMIT 20000"
    )
    await connection.close()
    return [tuple(record) for record in records]


async def median_s(ask: Ask) -> tuple[float, float]:
    """The median and the longest of several times, after one that warms up."""
    await ask()
    times: list[float] = []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        await ask()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times), max(times)


async def ask_all(dsn: str) -> dict[str, tuple[float, float]]:
    """How long each question takes."""
    dice = random.Random(1)
    ids = await some_ids(dsn)
    ledger = await Ledger.open(dsn)
    questions = Questions(ledger)

    def report(request: ReportRequest) -> Ask:
        return lambda: questions.answer(request)

    asks: dict[str, Ask] = {name: report(request) for name, request in questions.reports().items()}
    asks["one request by our id"] = lambda: questions.lookup(dice.choice(ids)[0])
    asks["one request by the client's id"] = lambda: questions.lookup(dice.choice(ids)[1])
    asks["a page of one tenant's rows"] = questions.page
    try:
        return {name: await median_s(ask) for name, ask in asks.items()}
    finally:
        await ledger.close()


def test_people_are_answered_within_a_tenth_of_a_second(
    postgres_dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    assert free > ROWS * BYTES_PER_ROW * 1.5, f"{free / 1e9:.0f} GB are too little disk"
    with capfd.disabled():
        console = Console(width=120)
        console.print(asyncio.run(fill(postgres_dsn, ROWS)), highlight=False)
        times = asyncio.run(ask_all(postgres_dsn))
        load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs (above one each, these are times of waiting)"
        table = Table(title=load, title_justify="left")
        for heading in ("asked of the ledger", "median ms", "longest ms", f"under {BAR_S * 1000:.0f} ms"):
            table.add_column(heading)
        for name, (median, longest) in times.items():
            verdict = "yes" if median < BAR_S else "NO"
            table.add_row(name, f"{median * 1000:.1f}", f"{longest * 1000:.1f}", verdict)
        console.print(table)
    missed = [name for name, (median, _) in times.items() if median >= BAR_S]
    assert not missed
