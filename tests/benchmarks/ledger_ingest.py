"""How fast accountants book events, beside COPY and INSERT of the same rows alone: `make bench-ledger-ingest`.

The accountants are whole processes on real servers: durable consumer, accounting, hash chain, COPY, commit,
acknowledgement. They stand still (SIGSTOP) until everything is stored, so that neither their start nor the publishing
counts. What stands beside them does nothing but hand the same rows, made beforehand, to the same Postgres: COPY into a
temporary table and INSERT ... ON CONFLICT DO NOTHING into a ledger with the same partitions and indexes, a transaction
for as many rows as the accountant writes in one.
"""

import asyncio
import multiprocessing
import random
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import click
import uvloop
from accountants import ended_request, publish
from conftest import NatsServer, Servers
from ledger_world import LedgerServers, LedgerWorld, ledger_world, new_database, until
from rich.console import Console
from rich.table import Table

from goodput_accountant.appending import COLUMNS
from goodput_accountant.migrations import migrate
from goodput_accountant.settings import REPOSITORY_MIGRATIONS, AccountantSettings
from tokenfleet.bus import Bus
from tokenfleet.contracts.requests import Ended, Objective

LEAST_RATE = 12_000
"""Events a second by one process; said, not enforced, since it depends on the machine."""
LEAST_SHARE = 0.4
"""Of COPY and INSERT alone."""
LEAST_OF_ONE = 0.9
"""Two accountants are not slower than one; runs differ by up to a tenth."""
STORE_AT_ONCE = 2_000
PULLS_EXPIRED_S = 5.5
BATCH = AccountantSettings.model_fields["ledger_batch"].default

ALONE = "COPY and INSERT alone"
ONE, TWO, PUBLISHED = "one accountant", "two accountants", "one, while published"


@dataclass(frozen=True)
class Figures:
    """One measurement."""

    events: int
    wall_s: float
    cpu_s: float | None = None
    """Of the accountants, all together."""

    @property
    def rate(self) -> float:
        return self.events / self.wall_s


def requests(count: int, seed: int) -> Iterator[Ended]:
    """Requests of all kinds, submitted within the last minute."""
    draw = random.Random(seed)
    now_ns = time.time_ns()
    for number in range(count):
        e2e_s = draw.uniform(0.2, 20.0)
        ttft_s = e2e_s * draw.uniform(0.05, 0.9)
        output_tokens = draw.randint(1, 900)
        completed = draw.random() < 0.9
        yield ended_request(
            uuid.UUID(int=draw.getrandbits(128), version=4).hex,
            client_request_id=f"bench-{number}",
            tenant=f"tenant-{draw.randrange(20)}",
            request_class=draw.choice(("interactive", "agent", "batch")),
            instance=f"engine-{draw.randrange(16)}",
            outcome="completed" if completed else draw.choice(("timed_out", "cancelled", "failed")),
            submitted_ns=now_ns - draw.randrange(60 * 10**9),
            time_ns=now_ns,
            objective=Objective(ttft_s=4.0, tpot_s=0.1),
            input_tokens=draw.randint(10, 30_000),
            reused_tokens=draw.randint(0, 10_000),
            output_tokens=output_tokens,
            e2e_s=e2e_s,
            ttft_s=ttft_s,
            tpot_s=(e2e_s - ttft_s) / output_tokens,
            predicted_ttft_s=ttft_s * draw.uniform(0.5, 2.0),
            predicted_tpot_s=0.02,
            queue_wait_s=ttft_s / 10,
            prefill_gpu_s=draw.random(),
            decode_gpu_s=draw.random(),
        )


async def store(server: NatsServer, count: int, seed: int) -> None:
    """Publish so many requests."""
    bus = await Bus.connect(server.settings("ingress"), "bench-publisher")
    events = list(requests(count, seed))
    for first in range(0, count, STORE_AT_ONCE):
        await publish(bus, events[first : first + STORE_AT_ONCE])
    await bus.drain()


def _store(server: NatsServer, count: int, seed: int) -> None:
    uvloop.run(store(server, count, seed))


async def stored_events(
    servers: LedgerServers, accountants: int, count: int, seed: int
) -> tuple[Figures, Any]:
    """Accountants, let loose on a stream that holds everything already; the figures and the rows they wrote."""
    async with ledger_world(servers) as world:
        processes = [await world.accountant() for _ in range(accountants)]
        for process in processes:
            process.signal(signal.SIGSTOP)
        await asyncio.sleep(
            PULLS_EXPIRED_S
        )  # what they had asked for would be delivered to them while they stand
        await store(servers.nats_server, count, seed)
        cpu_s = sum(process.cpu_s() for process in processes)
        started_s = time.perf_counter()
        for process in processes:
            process.signal(signal.SIGCONT)
        await until_booked(world, count)
        wall_s = time.perf_counter() - started_s
        cpu_s = sum(process.cpu_s() for process in processes) - cpu_s
        return Figures(count, wall_s, cpu_s), await rows_of(world, count)


async def while_published(servers: LedgerServers, count: int, seed: int) -> Figures:
    """One accountant that books what a publisher stores at the same time, as fast as it can."""
    async with ledger_world(servers) as world:
        process = await world.accountant()
        cpu_s = process.cpu_s()
        publisher = multiprocessing.get_context("spawn").Process(
            target=_store, args=(servers.nats_server, count, seed)
        )
        publisher.start()

        async def begun() -> bool:
            return await world.backlog() > 0

        await until(begun, "the first event is stored")
        started_s = time.perf_counter()
        await asyncio.to_thread(publisher.join)
        await until_booked(world, count)
        wall_s = time.perf_counter() - started_s
        await rows_of(world, count)
        return Figures(count, wall_s, process.cpu_s() - cpu_s)


async def until_booked(world: LedgerWorld, count: int) -> None:
    """Return once everything is acknowledged."""
    while await world.backlog():
        await asyncio.sleep(0.05)


async def rows_of(world: LedgerWorld, count: int) -> list[Any]:
    """The rows in the order they were written, after checking that nothing is missing or there twice."""
    connection = await asyncpg.connect(world.dsn)
    try:
        rows = await connection.fetch(
            f"SELECT {', '.join(COLUMNS)} FROM ledger ORDER BY submitted_at::date, sequence"
        )
        linked = await connection.fetchval("SELECT sum(rows) FROM ledger_days")
    finally:
        await connection.close()
    requests_booked = len({row["request_id"] for row in rows})
    if not len(rows) == requests_booked == linked == count:
        raise click.ClickException(
            f"{count:,} events became {len(rows):,} rows of {requests_booked:,} requests, {linked:,} of them in chains."
        )
    return rows


async def alone(servers: LedgerServers, rows: list[Any]) -> Figures:
    """The same rows by COPY to a temporary table and INSERT."""
    dsn = await new_database(servers.postgres_server)
    await migrate(await asyncpg.connect(dsn), REPOSITORY_MIGRATIONS)
    connection = await asyncpg.connect(dsn)
    days = sorted({row["submitted_at"].date() for row in rows})
    for day in days:
        await connection.execute(
            f"CREATE TABLE day_{day:%Y%m%d} PARTITION OF ledger "
            f"FOR VALUES FROM ('{day} 00:00:00+00') TO ('{day} 24:00:00+00')"
        )
    await connection.execute("CREATE TEMPORARY TABLE incoming (LIKE ledger) ON COMMIT DELETE ROWS")
    names = ", ".join(COLUMNS)
    insert = f"INSERT INTO ledger ({names}) SELECT {names} FROM incoming ON CONFLICT DO NOTHING"
    records = [tuple(row) for row in rows]
    started_s = time.perf_counter()
    for first in range(0, len(records), BATCH):
        async with connection.transaction():
            batch = records[first : first + BATCH]
            await connection.copy_records_to_table("incoming", records=batch, columns=COLUMNS)
            await connection.execute(insert)
    wall_s = time.perf_counter() - started_s
    await connection.close()
    return Figures(len(rows), wall_s)


async def measure(servers: LedgerServers, count: int, rounds: int) -> list[dict[str, Figures]]:
    """Everything, one after another, so many times."""
    found: list[dict[str, Figures]] = []
    for number in range(rounds):
        one, rows = await stored_events(servers, 1, count, seed=4 * number)
        figures = {ONE: one, ALONE: await alone(servers, rows)}
        del rows
        figures[TWO], _ = await stored_events(servers, 2, count, seed=4 * number + 1)
        figures[PUBLISHED] = await while_published(servers, count, seed=4 * number + 2)
        found.append(figures)
    return found


def show(found: list[dict[str, Figures]]) -> None:
    """A line for each measurement; shares are of COPY and INSERT alone in the same round."""
    table = Table(
        title=f"Booking {found[0][ONE].events:,} events, {BATCH:,} a transaction", title_justify="left"
    )
    table.add_column("round", justify="right")
    table.add_column("")
    for heading in ("events/s", "of COPY and INSERT alone", "CPU of accountants, µs an event"):
        table.add_column(heading, justify="right")
    for number, figures in enumerate(found, 1):
        for what, each in figures.items():
            cpu = "" if each.cpu_s is None else f"{each.cpu_s / each.events * 1e6:.1f}"
            share = each.rate / figures[ALONE].rate
            table.add_row(str(number), what, f"{each.rate:,.0f}", f"{share:.2f}", cpu)
    Console(width=100).print(table)


def rate_of(found: list[dict[str, Figures]], what: str) -> float:
    """The median rate."""
    return statistics.median(figures[what].rate for figures in found)


def ratio_of(found: list[dict[str, Figures]], what: str, to: str) -> float:
    """The median of the ratios of two rates, each of one round: others use the machine, too."""
    return statistics.median(figures[what].rate / figures[to].rate for figures in found)


def failures(found: list[dict[str, Figures]]) -> list[str]:
    """The bars that were missed."""
    missed: list[str] = []
    share = ratio_of(found, ONE, ALONE)
    if share < LEAST_SHARE:
        missed.append(f"one accountant is at {share:.2f} of {ALONE}, less than {LEAST_SHARE}")
    of_one = ratio_of(found, TWO, ONE)
    if of_one < LEAST_OF_ONE:
        missed.append(f"two accountants are at {of_one:.2f} of one")
    return missed


@click.command(
    epilog="""\b
Examples:
  make bench-ledger-ingest
  PYTHONPATH=tests .venv/bin/python -m benchmarks.ledger_ingest --events 20000 --rounds 1
"""
)
@click.option("--events", default=120_000, show_default=True, type=click.IntRange(min=1_000))
@click.option(
    "--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Their median counts."
)
def main(events: int, rounds: int) -> None:
    """Measure how fast accountants book events; exits 1 if a ratio between measurements misses its bar."""
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder))
        try:
            ledger_servers = LedgerServers.start(servers, "ingest")
            found = uvloop.run(measure(ledger_servers, events, rounds))
            ledger_servers.stop()
        finally:
            servers.close()
    show(found)
    rate = rate_of(found, ONE)
    verb = "reaches" if rate >= LEAST_RATE else "MISSES"
    click.echo(
        f"Median of {rounds}: one accountant books {rate:,.0f} events/s, {ratio_of(found, ONE, ALONE):.2f} of {ALONE}, "
        f"and {verb} the bar of {LEAST_RATE:,}; two book {rate_of(found, TWO):,.0f}."
    )
    missed = failures(found)
    for each in missed:
        click.echo(f"MISSED: {each}.", err=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
