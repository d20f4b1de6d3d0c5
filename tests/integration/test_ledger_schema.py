"""The ledger's schema brought forward with data in it."""

import datetime
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg
import msgspec
import pytest
from accountants import ended_request

from goodput_accountant.ledger import Ledger
from goodput_accountant.migrations import migrate
from goodput_accountant.policy.accounting import account
from goodput_accountant.policy.chain import CANONICAL, START, canonical, link
from goodput_accountant.policy.totals import Totals
from goodput_accountant.roller import Roller
from goodput_accountant.settings import REPOSITORY_MIGRATIONS
from goodput_accountant.spans import read_wanted, span_totals
from tokenfleet.clock import SystemClock
from tokenfleet.contracts.ledger import ReportRequest
from tokenfleet.contracts.requests import Ended, Objective, lost_event_id

pytestmark = pytest.mark.integration

NOON_NS = 1_764_590_400 * 10**9
"""2025-12-01 12:00 UTC."""
DAY_NS = 86_400 * 10**9


@pytest.fixture
async def fresh_dsn(postgres_dsn: str) -> AsyncIterator[str]:
    """A database that only one test uses."""
    name = f"schema_{secrets.token_hex(6)}"
    connection = await asyncpg.connect(postgres_dsn)
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'CREATE DATABASE "{name}"')
    yield postgres_dsn.replace(database, name)
    await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await connection.close()


def ended(number: int, submitted_ns: int, **changes: Any) -> Ended:
    fields = {
        "client_request_id": f"run-{number}",
        "submitted_ns": submitted_ns,
        "time_ns": submitted_ns + 1_500_000_000,
        "objective": Objective(ttft_s=0.1 * number, tpot_s=0.1),
        "tpot_s": 0.123456789,
    }
    return ended_request(f"r{number}", **(fields | changes))


async def chain_of(connection: asyncpg.Connection, day: datetime.date) -> list[Mapping[str, Any]]:
    """A day's rows in order, after checking every hash and the head kept beside them."""
    rows = [
        dict(record)
        for record in await connection.fetch(
            "SELECT * FROM ledger WHERE (submitted_at AT TIME ZONE 'UTC')::date = $1 ORDER BY sequence", day
        )
    ]
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    hashes = link(START, [canonical(row, row["row_schema"]) for row in rows])
    assert [row["chain_hash"] for row in rows] == list(hashes)
    kept = await connection.fetchrow("SELECT rows, head FROM ledger_days WHERE day = $1", day)
    assert kept is not None and tuple(kept) == (len(rows), hashes[-1])
    return rows


async def test_rows_of_the_schema_before_are_chained_by_day_and_the_chain_goes_on(postgres_dsn: str) -> None:
    await migrate(await asyncpg.connect(postgres_dsn), REPOSITORY_MIGRATIONS, "0002")
    old = [account(ended(number, NOON_NS + number // 3 * DAY_NS)) for number in range(7)]
    names = (*CANONICAL[1], "submitted_at", "ended_at")
    connection = await asyncpg.connect(postgres_dsn)
    try:
        for row in old:
            values = [getattr(row, name) for name in CANONICAL[1]]
            times = [
                datetime.datetime.fromtimestamp(ns / 1e9, datetime.UTC)
                for ns in (row.submitted_ns, row.ended_ns)
            ]
            places = ", ".join(f"${place}" for place in range(1, len(names) + 1))
            await connection.execute(
                f"INSERT INTO ledger ({', '.join(names)}) VALUES ({places})", *values, *times
            )

        await migrate(await asyncpg.connect(postgres_dsn), REPOSITORY_MIGRATIONS)

        first = datetime.date(2025, 12, 1)
        counts = [len(await chain_of(connection, first + datetime.timedelta(days=day))) for day in range(3)]
        assert counts == [3, 3, 1]
        ledger = await Ledger.open(postgres_dsn)
        try:
            kept = await ledger.report_rows(ReportRequest(client_request_id_prefix="run-"), 100)
            blank = {"queue_wait_s": None, "prefill_gpu_s": None, "decode_gpu_s": None, "wasted_gpu_s": None}
            assert sorted(kept, key=lambda row: row.request_id) == [
                msgspec.structs.replace(row, **blank) for row in old
            ]
            again = await ledger.append([old[0], account(ended(8, NOON_NS))])
            assert again.event_ids == {"r8.end"}
        finally:
            await ledger.close()
        assert [row["row_schema"] for row in await chain_of(connection, first)] == [1, 1, 1, 2]
    finally:
        await connection.close()


@pytest.mark.parametrize("rows", [0, 1])
async def test_dead_letters_of_the_schema_before_stay_readable(fresh_dsn: str, rows: int) -> None:
    await migrate(await asyncpg.connect(fresh_dsn), REPOSITORY_MIGRATIONS, "0003")
    connection = await asyncpg.connect(fresh_dsn)
    try:
        for _ in range(rows):
            await connection.execute(
                "INSERT INTO dead_letters (stream_sequence, payload_sha256, subject, reason, payload) "
                "VALUES (7, 'x', 'tf.v1.local.request.m.completed', 'not a valid Ended', '{')"
            )
        await migrate(await asyncpg.connect(fresh_dsn), REPOSITORY_MIGRATIONS)

        async def has(table: str) -> bool:
            return await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", table)

        assert not await has("dead_letters")
        assert await has("dead_letters_before_0005") is bool(rows)
        if rows:
            kept = await connection.fetchval("SELECT reason FROM dead_letters_before_0005")
            assert kept == "not a valid Ended"
    finally:
        await connection.close()


async def test_days_of_the_schema_before_are_rolled_up_and_go_on(postgres_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("DROP SCHEMA public CASCADE; DROP SCHEMA batch CASCADE; CREATE SCHEMA public")
    await migrate(await asyncpg.connect(postgres_dsn), REPOSITORY_MIGRATIONS, "0003")
    ledger = await Ledger.open(postgres_dsn)
    lost = ended(0, NOON_NS, event_id=lost_event_id("r0"), outcome="lost", reason="no_outcome", status=500)
    rows = [
        account(lost),
        *(account(ended(number, NOON_NS + number % 3 * DAY_NS)) for number in range(101, 130)),
    ]
    try:
        await ledger.append(rows)

        await migrate(await asyncpg.connect(postgres_dsn), REPOSITORY_MIGRATIONS)

        late = [account(ended(0, NOON_NS)), account(ended(130, NOON_NS))]
        roller = Roller(ledger, SystemClock(), step_rows=4)
        await roller.step()
        await ledger.append(late)
        while await roller.step():
            pass
        expected = Totals.of([*rows[1:], *late])
        async with ledger.reading() as reading:
            wanted = await read_wanted(reading, ReportRequest())
            assert wanted is not None and all(day.rolled == day.rows for day in wanted.days)
            groups = await span_totals(reading, ReportRequest(), wanted, 0)
        assert groups is not None and Totals.sum(groups.values()) == expected
        for day in range(3):
            await chain_of(connection, datetime.date(2025, 12, 1) + datetime.timedelta(days=day))
    finally:
        await ledger.close()
        await connection.close()


async def test_a_true_outcome_that_arrives_after_all_replaces_lost_whatever_comes_first(
    postgres_dsn: str,
) -> None:
    await migrate(await asyncpg.connect(postgres_dsn), REPOSITORY_MIGRATIONS)
    ledger = await Ledger.open(postgres_dsn)
    try:
        for number, order in ((20, (0, 1)), (21, (1, 0))):
            lost = ended(
                number,
                NOON_NS,
                event_id=lost_event_id(f"r{number}"),
                outcome="lost",
                reason="no_outcome",
                status=500,
            )
            both = [account(lost), account(ended(number, NOON_NS))]
            for which in order:
                await ledger.append([both[which]])
            [row] = await ledger.report_rows(ReportRequest(client_request_id_prefix=f"run-{number}"), 10)
            assert (row.outcome, row.revision) == ("completed", 1)
    finally:
        await ledger.close()
