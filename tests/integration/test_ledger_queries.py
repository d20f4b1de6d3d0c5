"""The questions that `make bench-ledger` asks of ten million rows, asked of a few thousand: the answers are right."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest
from ledger_months import DAYS, FixedClock, day_number, fill_day
from ledger_questions import HALF_NS, MONTH, NOW_NS, Questions

from goodput_accountant.ledger import Ledger, as_row
from goodput_accountant.migrations import migrate
from goodput_accountant.policy.accounting import LedgerRow
from goodput_accountant.policy.chain import FIELDS
from goodput_accountant.policy.report import build_report
from goodput_accountant.roller import Roller
from goodput_accountant.settings import REPOSITORY_MIGRATIONS

pytestmark = pytest.mark.integration

ROWS_PER_DAY = 700


@pytest.fixture(scope="module")
def ledger_dsn(postgres_dsn: str) -> str:
    async def fill() -> None:
        connection = await asyncpg.connect(postgres_dsn)
        await migrate(await asyncpg.connect(postgres_dsn), REPOSITORY_MIGRATIONS)
        for number in range(DAYS):
            await fill_day(connection, day_number(number), ROWS_PER_DAY)
        await connection.close()
        ledger = await Ledger.open(postgres_dsn)
        roller = Roller(ledger, FixedClock(NOW_NS))
        while await roller.step():
            pass
        await ledger.close()

    asyncio.run(fill())
    return postgres_dsn


async def rows_of(dsn: str) -> Sequence[LedgerRow]:
    connection = await asyncpg.connect(dsn)
    records = await connection.fetch(f"SELECT {', '.join(FIELDS)} FROM ledger_current")
    await connection.close()
    return list(map(as_row, records))


@pytest.mark.parametrize("exact_rows", [0, 5_000])
async def test_every_question_is_answered_as_the_rows_say(
    ledger_dsn: str, exact_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goodput_accountant.reports.EXACT_ROWS", exact_rows)
    rows = await rows_of(ledger_dsn)
    assert len(rows) == DAYS * ROWS_PER_DAY
    ledger = await Ledger.open(ledger_dsn)
    try:
        questions = Questions(ledger)
        for name, request in questions.reports().items():
            report = await questions.answer(request)
            chosen = [
                row
                for row in rows
                if (request.from_ns or 0) <= row.submitted_ns < (request.to_ns or MONTH[1])
                and request.tenant in (None, row.tenant)
            ]
            expected = build_report(chosen).total
            found = report.total
            assert found.offered == expected.offered > 0, name
            assert found.good_output_tokens == expected.good_output_tokens, name
            assert found.waste == expected.waste, name
            assert found.duration_s == expected.duration_s, name
        one = rows[1234]
        for wanted in (one.request_id, one.client_request_id):
            assert wanted is not None
            [entry] = (await questions.lookup(wanted)).entries
            assert entry.request_id == one.request_id
        page = await questions.page()
        matching = [row for row in rows if row.submitted_ns >= HALF_NS and row.tenant == "tenant-3"]
        assert {row[0] for row in page.rows} == {row.event_id for row in matching}
        assert page.next is None
    finally:
        await ledger.close()
