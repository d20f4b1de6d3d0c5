"""A running accountant whose old rows were dropped: the audit knows, and what comes late is booked as ever."""

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from accountants import POOL, SITE, accountant, ended_request
from booking import until_booked
from click.testing import CliRunner, Result
from conftest import NatsServer

from console.main import cli
from goodput_accountant.ledger import Ledger
from goodput_accountant.retention import Retention
from goodput_accountant.roller import Roller
from goodput_accountant.settings import AccountantSettings
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.clock import SystemClock
from tokenfleet.contracts.requests import Ended

pytestmark = pytest.mark.integration

DAY_NS = 86_400 * 10**9


def old(number: int) -> Ended:
    """A request of forty days ago, reported only now."""
    submitted_ns = (time.time_ns() // DAY_NS - 40) * DAY_NS + number * 10**9
    return ended_request(f"old{number}", submitted_ns=submitted_ns, time_ns=submitted_ns + 10**9)


async def book(nats_server: NatsServer, dsn: str, *events: Ended) -> None:
    """Have an accountant book them, roll them up and drop what is due."""
    async with accountant(nats_server, dsn, ledger_keep_days=30):
        bus = await Bus.connect(nats_server.settings("ingress"), "ingress")
        for event in events:
            await bus.publish_acked(subjects.request(SITE, POOL, event.outcome), event, event.event_id)
        await bus.drain()
        operator = await Bus.connect(nats_server.settings("operator"), "operator")
        await until_booked(operator)
        await operator.drain()
    ledger = await Ledger.open(dsn)
    while await Roller(ledger, SystemClock()).step():
        pass
    await Retention(ledger, SystemClock(), 30).sweep()
    await ledger.close()


@pytest.fixture
def tokenfleet(
    postgres_dsn: str, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Run a command as the operator."""
    monkeypatch.setenv("TOKENFLEET_POSTGRES_DSN", postgres_dsn)
    for name, value in nats_server.environment("operator").items():
        monkeypatch.setenv(name, value)
    return lambda *arguments: CliRunner().invoke(cli, arguments)


def test_the_audit_says_dropped_and_finds_nothing_missing(
    nats_server: NatsServer, postgres_dsn: str, tokenfleet: Callable[..., Result]
) -> None:
    asyncio.run(book(nats_server, postgres_dsn, *map(old, range(20)), ended_request("new")))
    for rows, event in ((20, None), (21, old(20))):
        if event is not None:
            asyncio.run(book(nats_server, postgres_dsn, event))
        verified = tokenfleet("audit", "verify")
        assert verified.exit_code == 0, verified.output
        said = " ".join(verified.output.split())
        assert f"dropped: the ledger no longer keeps the rows of {rows} of these events" in said
        shown = tokenfleet("ledger", "retention", "--keep-days", "30", "--json")
        assert shown.exit_code == 0, shown.output
        first, last = json.loads(shown.output)
        assert (first["rows"], first["dropped_rows"], first["fate"]) == (rows, rows, "dropped")
        assert (last["rows"], last["rolled_rows"], last["fate"]) == (1, 1, "kept")
    table = tokenfleet("ledger", "retention", "--keep-days", "30")
    assert table.exit_code == 0
    assert "dropped" in table.output and "rows are kept for 30 days" in table.output


def test_rows_are_kept_for_as_long_as_their_events_may_come_again() -> None:
    with pytest.raises(ValueError, match="at least 14"):
        AccountantSettings(postgres_dsn="postgresql:///", ledger_keep_days=7)  # type: ignore[arg-type]
