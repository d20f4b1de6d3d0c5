"""Roll-ups of a real ledger: with whatever they have so far, a span's totals are those of the rows that count."""

import asyncio
import contextlib
import datetime
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import msgspec
import pytest
from accountants import ended_request
from ledger_months import FixedClock

from goodput_accountant.ledger import Ledger, TooManyRowsError, as_row
from goodput_accountant.migrations import migrate
from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.chain import FIELDS, START
from goodput_accountant.policy.report import KEYS
from goodput_accountant.policy.totals import Totals
from goodput_accountant.questions import BadQuestionError
from goodput_accountant.reports import Reports
from goodput_accountant.retention import Retention, days_kept
from goodput_accountant.roller import Roller
from goodput_accountant.settings import REPOSITORY_MIGRATIONS
from goodput_accountant.spans import read_wanted, span_totals
from tokenfleet.contracts.ledger import GroupBy, ReportRequest
from tokenfleet.contracts.requests import Objective, lost_event_id

pytestmark = pytest.mark.integration

SECOND_NS = 10**9
HOUR_NS = 3_600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
MIDNIGHT_NS = 1_764_547_200 * SECOND_NS
"""2025-12-01 00:00 UTC."""
DAYS = 3
GROUPINGS: tuple[GroupBy, ...] = ("class", "tenant", "pool", "site", "version", "model")


LATER = FixedClock(MIDNIGHT_NS + DAYS * DAY_NS)
MUCH_LATER = FixedClock(MIDNIGHT_NS + 40 * DAY_NS)


def any_row(dice: random.Random, number: int, **changes: Any) -> LedgerRow:
    """Any request of the three days, most of them of a few hours."""
    hour = dice.choice((0, 7, 7, 8, 23, dice.randrange(24)))
    submitted_ns = MIDNIGHT_NS + dice.randrange(DAYS) * DAY_NS + hour * HOUR_NS + dice.randrange(HOUR_NS)
    pool = dice.choice(("llama-70b@1", "llama-70b@2", "tiny@1"))
    fields: dict[str, Any] = {
        "submitted_ns": submitted_ns,
        "time_ns": submitted_ns + dice.randrange(1, 7_200 * SECOND_NS),
        "tenant": dice.choice(("acme", "umbrella")),
        "request_class": dice.choice(("interactive", "batch", None)),
        "pool": pool,
        "model": pool.split("@")[0],
        "site": dice.choice(("local", "far")),
        "outcome": dice.choice(("completed", "completed", "timed_out", "cancelled", "failed", "rejected")),
        "ttft_s": dice.choice((None, dice.lognormvariate(0, 1))),
        "tpot_s": dice.lognormvariate(-3, 1),
        "objective": dice.choice((None, Objective(ttft_s=1.0, tpot_s=0.1))),
        "time_scale": dice.choice((1.0, 10.0)),
        "prefill_gpu_s": dice.choice((None, dice.random())),
        "retried_input_tokens": dice.choice((0, 30)),
    }
    return account(ended_request(f"r{number}", **(fields | changes)))


def lost_before(row: LedgerRow, dice: random.Random) -> LedgerRow:
    """What was booked of the same request before its outcome was known."""
    fields = {
        "event_id": lost_event_id(row.request_id),
        "outcome": "lost",
        "submitted_ns": row.submitted_ns,
        "time_ns": row.ended_ns + dice.choice((-1, 1)) * dice.randrange(SECOND_NS),
        "tenant": row.tenant,
        "site": row.site,
        "pool": row.pool,
        "model": row.model,
        "request_class": dice.choice((row.request_class, "interactive")),
        "time_scale": row.time_scale,
        "output_tokens": 0,
        "ttft_s": None,
        "tpot_s": None,
    }
    return account(ended_request(row.request_id, **fields))


@contextlib.asynccontextmanager
async def empty_ledger(dsn: str) -> AsyncIterator[Ledger]:
    """A ledger without rows."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS batch CASCADE; CREATE SCHEMA public"
    )
    await migrate(connection, REPOSITORY_MIGRATIONS)
    ledger = await Ledger.open(dsn)
    try:
        yield ledger
    finally:
        await ledger.close()


async def roll_up(ledger: Ledger, clock: FixedClock = LATER) -> None:
    roller = Roller(ledger, clock)
    while await roller.step():
        pass


async def agree(ledger: Ledger, request: ReportRequest) -> bool:
    """Compare a span's totals with those of its rows; whether roll-ups were of use."""
    async with ledger.reading() as connection:
        wanted = await read_wanted(connection, request)
        assert wanted is not None
        groups = await span_totals(connection, request, wanted, 10_000)
        records = await connection.fetch(f"SELECT {', '.join(FIELDS)} FROM ledger_current")
    rows = list(map(as_row, records))
    if groups is None:
        return False
    expected: dict[tuple[str, str], list[LedgerRow]] = {}
    for row in rows:
        if (
            (request.from_ns or 0) <= row.submitted_ns < (request.to_ns or 2**63)
            and request.pool in (None, row.pool)
            and request.tenant in (None, row.tenant)
        ):
            expected.setdefault((KEYS["class"](row), KEYS[request.group_by](row)), []).append(row)
    assert groups == {key: Totals.of(group) for key, group in expected.items()}
    return True


def any_request(dice: random.Random) -> ReportRequest:
    def any_moment() -> int | None:
        moment_ns = MIDNIGHT_NS + dice.randrange(DAYS * DAY_NS) // 1000 * 1000
        unit = dice.choice((1000, 300 * SECOND_NS, HOUR_NS, DAY_NS))
        return dice.choice((None, moment_ns // unit * unit))

    bounds = sorted(bound for bound in (any_moment(), any_moment()) if bound is not None)
    from_ns, to_ns = bounds if len(bounds) == 2 and bounds[0] < bounds[1] else (None, None)
    return ReportRequest(
        from_ns=from_ns,
        to_ns=to_ns,
        pool=dice.choice((None, None, "tiny@1")),
        tenant=dice.choice((None, None, "acme")),
        group_by=dice.choice(GROUPINGS),
    )


@pytest.mark.parametrize("seed", range(4))
async def test_roll_ups_of_any_prefix_and_the_rows_after_it_are_the_rows_that_count(
    postgres_dsn: str, seed: int
) -> None:
    dice = random.Random(seed)
    rows: list[LedgerRow] = []
    for number in range(400):
        row = any_row(dice, number)
        both = [row, lost_before(row, dice)] if number % 4 == 0 else [row]
        rows += both
    dice.shuffle(rows)
    # Some days are old, so that they have no narrow roll-ups.
    clock = FixedClock(MIDNIGHT_NS + dice.randrange(2, 6) * DAY_NS)
    useful = 0
    async with empty_ledger(postgres_dsn) as ledger:
        while rows:
            cut = dice.randrange(1, 120)
            await ledger.append(rows[:cut])
            rows = rows[cut:]
            roller = Roller(ledger, clock, step_rows=dice.randrange(1, 60))
            for _ in range(dice.randrange(6)):
                await roller.step()
            for _ in range(6):
                useful += await agree(ledger, any_request(dice))
        await roll_up(ledger, clock)
        for group_by in GROUPINGS:
            assert await agree(ledger, ReportRequest(group_by=group_by))
    assert useful > 10


async def test_several_accountants_roll_up_everything_once(postgres_dsn: str) -> None:
    dice = random.Random(7)
    async with empty_ledger(postgres_dsn) as ledger, contextlib.AsyncExitStack() as stack:
        others = [await Ledger.open(postgres_dsn) for _ in range(3)]
        for other in others:
            stack.push_async_callback(other.close)
        rows = [any_row(dice, number) for number in range(600)]
        rollers = [Roller(other, LATER, step_rows=40) for other in others]

        async def rolling(roller: Roller) -> None:
            for _ in range(30):
                await roller.step()

        async def appending() -> None:
            for start in range(0, len(rows), 60):
                await ledger.append(rows[start : start + 60])

        await asyncio.gather(appending(), *map(rolling, rollers))
        await roll_up(ledger)
        assert await agree(ledger, ReportRequest(group_by="tenant"))


async def test_a_large_report_is_the_same_from_roll_ups_and_from_rows_but_for_its_percentiles(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(11)
    async with empty_ledger(postgres_dsn) as ledger:
        await ledger.append([any_row(dice, number) for number in range(800)])
        await roll_up(ledger)
        reports = Reports(ledger, 10_000, lambda: {"*": 3.0})
        request = ReportRequest(group_by="tenant", sort="waste")
        exact = await reports.answer(request)
        monkeypatch.setattr("goodput_accountant.reports.EXACT_ROWS", 100)
        rolled = await reports.answer(request)
        by_instance = await reports.answer(ReportRequest(group_by="instance"))
    assert not exact.total.approximate and rolled.total.approximate
    assert not by_instance.total.approximate
    assert rolled.total.ttft_s.p95 == pytest.approx(exact.total.ttft_s.p95, rel=0.04)

    def figures(summary: Any) -> Any:
        inexact = ("ttft_s", "tpot_s", "e2e_s", "approximate")
        known = msgspec.to_builtins(summary).items()
        # Prices are fractions, and their sum depends on the order of the pools.
        rounded = {name: round(value, 9) if isinstance(value, float) else value for name, value in known}
        return {name: value for name, value in rounded.items() if name not in inexact}

    assert figures(rolled.total) == figures(exact.total)
    assert list(rolled.groups) == list(exact.groups)
    assert {name: figures(each) for name, each in rolled.groups.items()} == {
        name: figures(each) for name, each in exact.groups.items()
    }
    assert {name: figures(each) for name, each in rolled.classes.items()} == {
        name: figures(each) for name, each in exact.classes.items()
    }


async def test_a_span_that_needs_too_many_rows_says_how_to_ask(postgres_dsn: str) -> None:
    dice = random.Random(12)
    async with empty_ledger(postgres_dsn) as ledger:
        await ledger.append([any_row(dice, number) for number in range(200)])
        with pytest.raises(TooManyRowsError, match="whole hours"):
            await Reports(ledger, 100, dict).answer(ReportRequest())
        await roll_up(ledger)
        assert (await Reports(ledger, 200, dict).answer(ReportRequest())).total.offered == 200


async def test_rows_of_old_days_are_dropped_and_reports_over_them_stay_the_same(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(13)
    monkeypatch.setattr("goodput_accountant.reports.EXACT_ROWS", 0)
    rows = [any_row(dice, number) for number in range(300)]
    async with empty_ledger(postgres_dsn) as ledger:
        await ledger.append(rows)
        retention = Retention(ledger, MUCH_LATER, 38)
        await retention.sweep()
        assert await there(ledger) == 300, "nothing is dropped that is not rolled up"
        await roll_up(ledger)
        reports = Reports(ledger, 10_000, dict)
        before = await reports.answer(ReportRequest(group_by="pool"))
        await retention.sweep()
        last_day = [row for row in rows if row.submitted_ns >= MIDNIGHT_NS + 2 * DAY_NS]
        assert await there(ledger) == len(last_day)
        assert await reports.answer(ReportRequest(group_by="pool")) == before
        whole_day = ReportRequest(from_ns=MIDNIGHT_NS, to_ns=MIDNIGHT_NS + DAY_NS)
        first_day = [row for row in rows if row.submitted_ns < MIDNIGHT_NS + DAY_NS]
        assert (await reports.answer(whole_day)).total.offered == len(first_day)
        with pytest.raises(BadQuestionError, match=r"2025-12-01 are no longer kept.* at whole hours"):
            await reports.answer(ReportRequest(from_ns=MIDNIGHT_NS + SECOND_NS))
        with pytest.raises(BadQuestionError, match=r"2025-12-02 .*are no longer kept"):
            await reports.answer(ReportRequest(group_by="instance"))
        async with ledger.reading() as connection:
            fates = [day.fate for day in await days_kept(connection, dates(MUCH_LATER), 38)]
        assert fates == ["dropped", "dropped", "kept"]


async def test_a_late_row_of_a_dropped_day_goes_on_its_chain_and_replaces_what_was_lost(
    postgres_dsn: str,
) -> None:
    dice = random.Random(14)
    known = [any_row(dice, number, submitted_ns=MIDNIGHT_NS + number) for number in range(50)]
    lost = [lost_before(row, dice) for row in known[:2]]
    async with empty_ledger(postgres_dsn) as ledger:
        await ledger.append([*lost, *known[2:48]])
        await roll_up(ledger)
        retention = Retention(ledger, MUCH_LATER, 20)
        await retention.sweep()
        assert await there(ledger) == 0
        late = [known[0], *known[48:]]
        assert len((await ledger.append(late)).event_ids) == 3
        assert len((await ledger.append(late)).event_ids) == 0
        async with ledger.reading() as connection:
            day = await connection.fetchrow("SELECT * FROM ledger_days")
            sequences = await connection.fetch("SELECT sequence FROM ledger ORDER BY 1")
        assert [record["sequence"] for record in sequences] == [49, 50, 51]
        assert (day["rows"], day["dropped_rows"]) == (51, 48)
        assert day["dropped_head"] != START
        expected = Totals.of([lost[1], known[0], *known[2:]])
        for _ in ("in the tail", "rolled up", "dropped again"):
            total = await all_of(ledger)
            assert msgspec.structs.replace(total, spans={}) == msgspec.structs.replace(expected, spans={})
            await roll_up(ledger)
        await retention.sweep()
        assert await there(ledger) == 0
        assert (await all_of(ledger)).rows == 50


async def test_the_narrowest_roll_ups_are_kept_of_the_latest_days_only(postgres_dsn: str) -> None:
    dice = random.Random(15)
    async with empty_ledger(postgres_dsn) as ledger:
        await ledger.append([any_row(dice, number) for number in range(200)])
        await roll_up(ledger)
        assert await widths(ledger) == [300, 3600, 86400]
        await Retention(ledger, MUCH_LATER, 0).sweep()
        assert await widths(ledger) == [3600, 86400]
        request = ReportRequest(from_ns=MIDNIGHT_NS + HOUR_NS // 2, to_ns=MIDNIGHT_NS + 30 * HOUR_NS)
        assert await agree(ledger, request)


async def there(ledger: Ledger) -> int:
    async with ledger.reading() as connection:
        return await connection.fetchval("SELECT count(*) FROM ledger")


async def widths(ledger: Ledger) -> Sequence[int]:
    async with ledger.reading() as connection:
        records = await connection.fetch("SELECT DISTINCT width_s FROM ledger_rollups ORDER BY 1")
    return [record["width_s"] for record in records]


async def all_of(ledger: Ledger) -> Totals:
    request = ReportRequest()
    async with ledger.reading() as connection:
        wanted = await read_wanted(connection, request)
        assert wanted is not None
        groups = await span_totals(connection, request, wanted, 10_000)
    assert groups is not None
    return Totals.sum(groups.values())


def dates(clock: FixedClock) -> Any:
    return datetime.datetime.fromtimestamp(clock.unix_ns() / 1e9, datetime.UTC).date()
