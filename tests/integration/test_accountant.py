"""The accountant against real servers: whatever happens on the way, rows = distinct requests."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from accountants import POOL, SITE, accountant, ended_request, publish
from booking import until_booked
from click.testing import CliRunner
from conftest import NatsServer
from nats.aio.msg import Msg
from pydantic import SecretStr
from structlog.testing import capture_logs

from console.embedded.postgres import EmbeddedPostgres
from console.process import ManagedProcess
from goodput_accountant.command import ledger as ledger_command
from goodput_accountant.dead_letters import DeadLetters
from goodput_accountant.dead_letters_command import find
from goodput_accountant.ingest import Ingest
from goodput_accountant.ledger import Ledger
from goodput_accountant.main import DURABLE
from goodput_accountant.metrics import Metrics
from goodput_accountant.migrations import migrate
from goodput_accountant.policy.accounting import account
from goodput_accountant.settings import AccountantSettings
from goodput_accountant.windows import WindowPublisher
from tokenfleet import subjects
from tokenfleet.bus import Bus, Fetched
from tokenfleet.clock import SystemClock
from tokenfleet.contracts.control import GoodputWindow
from tokenfleet.contracts.ledger import LedgerEntries, LedgerLookup, Report, ReportRequest
from tokenfleet.contracts.requests import Ended
from tokenfleet.errors import RemoteError, UnavailableError
from tokenfleet.service import Service

pytestmark = pytest.mark.integration

PATIENCE_S = 40.0


def ended(run: str, number: int, **changes: Any) -> Ended:
    """A good request of a run, ending now."""
    return ended_request(f"{run}{number}", **({"client_request_id": f"{run}-{number}"} | changes))


@contextlib.asynccontextmanager
async def connected(nats_server: NatsServer, user: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_server.settings(user), user)
    try:
        yield bus
    finally:
        await bus.drain()


async def rows_of(dsn: str, run: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(
            "SELECT count(*) FROM ledger WHERE client_request_id LIKE $1", f"{run}-%"
        )
    finally:
        await connection.close()


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.05)


async def until_written(dsn: str, bus: Bus, run: str, rows: int) -> None:
    """Wait until the ledger has taken everything in, then compare."""

    async def caught_up() -> bool:
        return await rows_of(dsn, run) >= rows

    await until(caught_up, f"{rows} rows of {run}")
    await until_booked(bus)
    assert await rows_of(dsn, run) == rows


async def test_duplicated_and_reordered_events_are_one_row_each(
    nats_server: NatsServer, postgres_dsn: str
) -> None:
    events = [ended("dup", number) for number in range(300)]
    async with accountant(nats_server, postgres_dsn), connected(nats_server, "ingress") as ingress:
        await publish(ingress, reversed(events))
        await publish(ingress, events, copy="again")
        # A second outcome of the same request is a duplicate too, even under another event id.
        contradiction = ended("dup", 0, outcome="failed", event_id="dup0.other")
        await publish(ingress, [contradiction])
        async with connected(nats_server, "operator") as operator:
            await until_written(postgres_dsn, operator, "dup", 300)
            report = await operator.request(
                subjects.ledger_report(SITE),
                ReportRequest(client_request_id_prefix="dup-", list_ids=True),
                Report,
            )
    assert report.total.completed == report.total.ledger_rows == 300
    assert report.total.failed == 0
    assert report.total.prefix_reuse == 0.5
    assert set(report.client_request_ids) == {f"dup-{number}" for number in range(300)}


async def test_what_cannot_be_booked_blocks_nothing(nats_server: NatsServer, postgres_dsn: str) -> None:
    events = [ended("bad", number) for number in range(100)]
    # A NUL is valid JSON, and Postgres does not take it.
    events[70] = msgspec.structs.replace(events[70], reason="st\0op")
    events[80] = msgspec.structs.replace(events[80], output_tokens=-5)
    # Credible to a rule, and more than the column holds.
    events[90] = msgspec.structs.replace(events[90], status=2**40)
    async with accountant(nats_server, postgres_dsn), connected(nats_server, "ingress") as ingress:
        for number, event in enumerate(events):
            if number == 50:
                subject = subjects.request(SITE, POOL, "completed")
                await ingress.publish_acked(subject, b'{"event_id": "trunc', "bad.truncated")
            await publish(ingress, [event])
        async with connected(nats_server, "operator") as operator:
            await until_written(postgres_dsn, operator, "bad", 97)
            letters = (await find(operator, 0, 10)).letters[::-1]
    assert [letter.payload[:10] for letter in letters] == [b'{"event_id'] * 4
    by_reason = {letter.reason: letter.detail for letter in letters}
    assert "not a valid Ended" in by_reason["malformed"]
    assert "output_tokens of request bad80 is not credible: -5" in by_reason["not_credible"]
    # Two batches may be booked at once: in either order.
    overflow, nul = sorted(letter.detail for letter in letters if letter.reason == "refused_by_ledger")[::-1]
    assert "int32" in overflow and "0x00" in nul


async def test_a_batch_delivered_again_after_its_commit_changes_nothing(
    nats_server: NatsServer, postgres_dsn: str
) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    settings = nats_server.settings(
        "goodput_accountant", AccountantSettings, postgres_dsn=SecretStr(postgres_dsn)
    )
    await migrate(connection, settings.migrations_dir)
    ledger = await Ledger.open(postgres_dsn)
    bus = await Bus.connect(settings, "goodput-accountant")
    service = Service("goodput-accountant", settings, bus)
    metrics = Metrics(service.observability.meter)
    dead_letters = DeadLetters(bus, metrics, service.clock, SITE)
    ingest = Ingest(ledger, dead_letters, metrics, service.observability, service.clock)
    crashes = 0

    async def crash_after_commit_once(batch: Sequence[Fetched]) -> None:
        nonlocal crashes
        assert await ingest(batch) == []
        if not crashes:
            crashes += 1
            raise RuntimeError("killed between commit and acknowledgement")

    consuming = asyncio.create_task(
        bus.consume(subjects.STREAM_REQUESTS, DURABLE, subjects.TERMINAL_SUBJECTS, crash_after_commit_once)
    )
    async with connected(nats_server, "ingress") as ingress, connected(nats_server, "operator") as operator:
        await publish(ingress, [ended("crash", number) for number in range(200)])
        await until_written(postgres_dsn, operator, "crash", 200)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    await ledger.close()
    await service.stop()
    assert crashes == 1
    assert ingest.rows_written == 200


async def test_postgres_may_go_away_and_come_back_under_ingest(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres")
    process = ManagedProcess(server.spec(tmp_path / "postgres.log"), print)
    await process.start()
    dsn = server.dsn()
    events = [ended("outage", number) for number in range(600)]
    with capture_logs() as logs:
        async with accountant(nats_server, dsn) as service, connected(nats_server, "operator") as operator:
            async with connected(nats_server, "ingress") as ingress:
                await publish(ingress, events[:200])
                await until_written(dsn, operator, "outage", 200)
                await process.stop()
                await publish(ingress, events[200:400])
                await until(_async(lambda: service.health()["postgres"] == "away"), "the outage is noticed")
                with pytest.raises(RemoteError, match="Postgres cannot be used"):
                    await operator.request(subjects.ledger_report(SITE), ReportRequest(), Report)
                await publish(ingress, events[400:])
                await process.start()
                await until_written(dsn, operator, "outage", 600)
            # Once questions are answered again, too.
            await until(_async(lambda: service.health()["postgres"] == "connected"), "the return is noticed")
    await process.stop()
    server.close()
    said = [entry["event"] for entry in logs if "postgres" in entry["event"]]
    assert said == ["postgres is away; trying again until it is back", "postgres is back"]


async def test_accountants_that_start_together_share_the_work(
    nats_server: NatsServer, postgres_dsn: str
) -> None:
    dsn = await _fresh_database(postgres_dsn)
    async with contextlib.AsyncExitStack() as stack:
        both = [accountant(nats_server, dsn, ledger_batch=50) for _ in range(2)]
        one, other = await asyncio.gather(*(stack.enter_async_context(each) for each in both))
        ingress = await stack.enter_async_context(connected(nats_server, "ingress"))
        operator = await stack.enter_async_context(connected(nats_server, "operator"))
        await publish(ingress, [ended("pair", number) for number in range(1000)])
        await until_written(dsn, operator, "pair", 1000)
        written = [service.health()["ledger_rows_written"] for service in (one, other)]
    assert sum(written) == 1000
    assert min(written) > 0


async def test_each_closed_window_is_published_by_whichever_accountant_comes_first(
    nats_server: NatsServer, postgres_dsn: str
) -> None:
    window_ns = 10_000_000_000
    start_ns = 1_700_000_000_000_000_000
    dsn = await _fresh_database(postgres_dsn)
    windows: list[GoodputWindow] = []

    async def on_window(message: Msg) -> None:
        windows.append(GoodputWindow.model_validate_json(message.data))

    async with (
        accountant(nats_server, dsn, goodput_window_s=3600.0) as service,
        connected(nats_server, "operator") as operator,
    ):
        await operator.subscribe_raw(subjects.ALL_GOODPUT, on_window)
        ledger = await Ledger.open(dsn)
        clock = _ManualClock(start_ns + 3_000_000_000)
        metrics = Metrics(service.observability.meter)
        broker = await service.broker()
        one, other = (WindowPublisher(ledger, broker, metrics, clock, "elsewhere", 10.0) for _ in range(2))
        await asyncio.gather(one.publish(), other.publish())
        # One row just before the windows' edge, two after it, one of another site.
        times = [start_ns + window_ns - 1000, start_ns + window_ns, start_ns + window_ns + 1, start_ns]
        sites = ["elsewhere", "elsewhere", "elsewhere", SITE]
        events = [
            ended("win", number, time_ns=time_ns, site=site)
            for number, (time_ns, site) in enumerate(zip(times, sites, strict=True))
        ]
        await ledger.append([account(event) for event in events])
        clock.now_ns = start_ns + 2 * window_ns + 1_500_000_000
        await asyncio.gather(one.publish(), other.publish())
        await asyncio.gather(one.publish(), other.publish())
        await until(_async(lambda: len(windows) >= 2), "two windows")
        await ledger.close()
    seen = [(window.time_ns, window.offered, window.met, window.good_tokens) for window in windows]
    assert seen == [(start_ns + window_ns, 1, 1, 10), (start_ns + 2 * window_ns, 2, 2, 20)]


async def test_a_person_asks_for_a_report(nats_server: NatsServer, postgres_dsn: str) -> None:
    async with accountant(nats_server, postgres_dsn, report_max_rows=20) as service:
        async with (
            connected(nats_server, "ingress") as ingress,
            connected(nats_server, "operator") as operator,
        ):
            await publish(ingress, [ended("ask%_", number) for number in range(10)])
            await publish(ingress, [ended("askxy", number, tenant="other") for number in range(11)])
            await until_written(postgres_dsn, operator, "ask%_", 21)

        def run(*arguments: str) -> Any:
            environment = nats_server.environment("operator") | {"TOKENFLEET_SITE": SITE}
            return CliRunner().invoke(ledger_command, ["report", *arguments], env=environment)

        table = await asyncio.to_thread(run, "--run", "ask%_", "--last", "1h")
        assert table.exit_code == 0, table.output
        assert "interactive" in table.output
        assert "met, of offered" in table.output

        as_json = await asyncio.to_thread(run, "--tenant", "other", "--pool", POOL, "--json")
        assert msgspec.json.decode(as_json.output)["total"]["ledger_rows"] == 11

        nothing = await asyncio.to_thread(run, "--run", "nobody", "--last", "30s")
        assert "no requests that match" in nothing.output

        too_many = await asyncio.to_thread(run, "--run", "ask")
        assert too_many.exit_code == 1
        assert "more than 20 requests" in too_many.output
        assert service.health()["postgres"] == "connected"


async def test_a_request_is_looked_up_by_either_id_the_latest_first(
    nats_server: NatsServer, postgres_dsn: str
) -> None:
    async with (
        accountant(nats_server, postgres_dsn),
        connected(nats_server, "ingress") as ingress,
        connected(nats_server, "operator") as operator,
    ):
        now_ns = time.time_ns()
        events = [
            ended("lookup", number, client_request_id="lookup-same", submitted_ns=now_ns - number * 10**9)
            for number in range(3)
        ]
        await publish(ingress, events)
        await until_written(postgres_dsn, operator, "lookup", 3)

        async def ids(wanted: str) -> list[str]:
            subject = subjects.ledger_lookup(SITE)
            found = await operator.request(subject, LedgerLookup(id=wanted), LedgerEntries)
            return [entry.request_id for entry in found.entries]

        assert await ids("lookup-same") == [event.request_id for event in events]
        assert await ids(events[1].request_id) == [events[1].request_id]
        assert await ids("lookup") == []


async def test_without_postgres_the_start_fails_with_advice(nats_server: NatsServer, tmp_path: Path) -> None:
    dsn = f"postgresql://nobody@/nowhere?host={tmp_path}"
    with pytest.raises(UnavailableError, match="TOKENFLEET_POSTGRES_DSN"):
        async with accountant(nats_server, dsn, postgres_wait_s=0.6):
            pass


class _ManualClock(SystemClock):
    """Shows the Unix time that the test says it is."""

    def __init__(self, now_ns: int) -> None:
        super().__init__()
        self.now_ns = now_ns

    def unix_ns(self) -> int:
        return self.now_ns


async def _fresh_database(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    name = await connection.fetchval("SELECT current_database()")
    fresh = f"{name}_{secrets.token_hex(3)}"
    await connection.execute(f'CREATE DATABASE "{fresh}"')
    await connection.close()
    return dsn.replace(name, fresh)


def _async(condition: Callable[[], bool]) -> Callable[[], Any]:
    async def ask() -> bool:
        return condition()

    return ask
