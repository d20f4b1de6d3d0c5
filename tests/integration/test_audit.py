"""The audit of a real ledger: whatever was done to it is found and named, and what is only on its way is not."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from accountants import POOL, SITE, accountant, ended_request
from booking import until_booked
from click.testing import CliRunner, Result
from conftest import NatsServer

from console.main import cli
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.requests import (
    Ended,
    RequestSpec,
    Routed,
    Submitted,
    event_id,
)
from tokenfleet.event_log import read_log

pytestmark = pytest.mark.integration

ROWS = 120


def ended(request_id: str, **changes: Any) -> Ended:
    """A good request that ended a little while ago."""
    return ended_request(request_id, **({"client_request_id": f"mine-{request_id}"} | changes))


@contextlib.asynccontextmanager
async def connected(nats_server: NatsServer, user: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_server.settings(user), user)
    try:
        yield bus
    finally:
        await bus.drain()


async def publish(bus: Bus, events: Iterable[Ended], copy: str = "") -> None:
    for event in events:
        subject = subjects.request(event.site, event.pool, event.outcome)
        await bus.publish_acked(subject, event, f"{event.event_id}{copy}")


async def until_all_booked(nats_server: NatsServer) -> None:
    async with connected(nats_server, "operator") as bus:
        await until_booked(bus)


@pytest.fixture(scope="module")
def ledger(nats_server: NatsServer, postgres_dsn: str) -> str:
    """A ledger with the rows r0, r1, ... of requests of every kind, made from a stream that still holds them."""

    async def fill() -> None:
        async with accountant(nats_server, postgres_dsn), connected(nats_server, "ingress") as ingress:
            outcomes = ("completed", "rejected", "timed_out", "cancelled", "failed")
            events = [ended(f"r{number}", outcome=outcomes[number % 5]) for number in range(ROWS - 1)]
            await publish(ingress, events)
            # Again, with something else in it: the first one counts.
            await publish(ingress, [msgspec.structs.replace(events[7], output_tokens=999)], copy="again")
            late_ns = time.time_ns() - 3_600 * 10**9
            late = ended(f"r{ROWS - 1}", submitted_ns=late_ns - 10**9, time_ns=late_ns)
            await publish(ingress, [late, ended("odd", output_tokens=-5)])
            subject = subjects.request(SITE, POOL, "completed")
            await ingress.publish_acked(subject, b'{"event_id": "trunc', "truncated")
            await until_all_booked(nats_server)

    asyncio.run(fill())
    return postgres_dsn


@pytest.fixture
def tokenfleet(
    ledger: str, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Run a command as the operator."""
    monkeypatch.setenv("TOKENFLEET_POSTGRES_DSN", ledger)
    for name, value in nats_server.environment("operator").items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments)

    return run


@contextlib.contextmanager
def tampered(dsn: str, *statements: str):
    """The ledger after somebody with all rights has been at it; then as it was before."""
    tables = ("ledger", "ledger_days")

    async def execute(*sql: str) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL session_replication_role = replica")
                for statement in sql:
                    assert await connection.execute(statement) != "UPDATE 0", statement
        finally:
            await connection.close()

    asyncio.run(
        execute(*(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}" for table in tables), *statements)
    )
    try:
        yield
    finally:
        restore = [
            statement
            for table in tables
            for statement in (
                f"DELETE FROM {table}",
                f"INSERT INTO {table} SELECT * FROM kept_{table}",
                f"DROP TABLE kept_{table}",
            )
        ]
        asyncio.run(execute(*restore))


def fetch(dsn: str, query: str) -> list[Any]:
    async def run() -> list[Any]:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    return asyncio.run(run())


def found(result: Result) -> dict[str, Any]:
    assert result.exit_code == 1, result.output
    return msgspec.json.decode(result.stdout)


def test_an_untouched_ledger_is_what_its_events_make_of_it(ledger: str, tokenfleet: Callable[..., Result]):
    result = tokenfleet("audit", "verify")
    assert result.exit_code == 0, result.output
    assert "no difference" in result.output
    assert f"{ROWS:,} rows in the chains" in result.output
    assert "2 events cannot be booked" in result.output
    assert "output_tokens of request odd is not credible" in result.output
    assert fetch(ledger, "SELECT 1 FROM pg_class WHERE relname = 'audit_rows'") == []


@pytest.mark.parametrize(
    ("column", "statement"),
    [
        ("output_tokens", "UPDATE ledger SET output_tokens = output_tokens + 1 WHERE request_id = 'r30'"),
        ("met", "UPDATE ledger SET met = NOT met WHERE request_id = 'r30'"),
        ("tenant", "UPDATE ledger SET tenant = 'other' WHERE request_id = 'r30'"),
        ("ttft_s", "UPDATE ledger SET ttft_s = NULL WHERE request_id = 'r30'"),
        ("missed", "UPDATE ledger SET missed = '{ttft}' WHERE request_id = 'r30'"),
        ("ended_at", "UPDATE ledger SET ended_at = ended_at + interval '1 h' WHERE request_id = 'r30'"),
    ],
)
def test_a_changed_column_is_named_by_both_the_comparison_and_the_chain(
    ledger: str, tokenfleet: Callable[..., Result], column: str, statement: str
):
    with tampered(ledger, statement):
        verdict = found(tokenfleet("audit", "verify", "--json"))
        text = tokenfleet("audit", "verify")
    [difference] = verdict["differences"]
    assert (difference["kind"], difference["request_id"]) == ("changed", "r30")
    assert set(difference["columns"]) == {column}
    [broken] = verdict["breaks"]
    assert (broken["kind"], broken["request_id"]) == ("changed", "r30")
    assert column in text.output
    assert "THE LEDGER DIFFERS" in text.output


def test_a_deleted_row_is_missed_by_the_comparison_and_in_its_chain(
    ledger: str, tokenfleet: Callable[..., Result]
):
    [row] = fetch(ledger, "SELECT sequence FROM ledger WHERE request_id = 'r31'")
    with tampered(ledger, "DELETE FROM ledger WHERE request_id = 'r31'"):
        verdict = found(tokenfleet("audit", "verify", "--json"))
    assert [(each["kind"], each["request_id"]) for each in verdict["differences"]] == [("missing", "r31")]
    assert [(each["kind"], each["sequence"]) for each in verdict["breaks"]] == [("removed", row["sequence"])]


def test_rows_cut_off_at_the_end_are_counted(ledger: str, tokenfleet: Callable[..., Result]):
    cut = (
        "DELETE FROM ledger USING ledger_days AS day WHERE day.rows > 1 AND sequence = day.rows "
        "AND day.day = (submitted_at AT TIME ZONE 'UTC')::date"
    )
    with tampered(ledger, cut):
        verdict = found(tokenfleet("audit", "verify", "--json"))
    assert [each["kind"] for each in verdict["differences"]] == ["missing"]
    assert [each["kind"] for each in verdict["breaks"]] == ["cut_off"]


def test_a_row_put_in_has_no_event_and_no_place_in_the_chain(ledger: str, tokenfleet: Callable[..., Result]):
    forge = (
        "CREATE TEMPORARY TABLE forged AS SELECT * FROM ledger WHERE request_id = 'r32'",
        # In the first seconds of a stream an event may just not be there any more.
        "UPDATE forged SET request_id = 'forged', event_id = 'forged.end', ended_ns = ended_ns + 60000000000, "
        "ended_at = ended_at + interval '60 s'",
        "INSERT INTO ledger SELECT * FROM forged",
        "DROP TABLE forged",
    )
    with tampered(ledger, *forge):
        verdict = found(tokenfleet("audit", "verify", "--json"))
    assert [(each["kind"], each["request_id"]) for each in verdict["differences"]] == [("unknown", "forged")]
    assert [(each["kind"], each["request_id"]) for each in verdict["breaks"]] == [("inserted", "forged")]


def test_two_rows_that_changed_places_break_the_chain_although_no_row_differs(
    ledger: str, tokenfleet: Callable[..., Result]
):
    [one] = fetch(ledger, "SELECT sequence FROM ledger WHERE request_id = 'r40'")
    [other] = fetch(ledger, "SELECT sequence FROM ledger WHERE request_id = 'r41'")
    swap = (
        "UPDATE ledger SET sequence = -1 WHERE request_id = 'r40'",
        f"UPDATE ledger SET sequence = {one['sequence']} WHERE request_id = 'r41'",
        f"UPDATE ledger SET sequence = {other['sequence']} WHERE request_id = 'r40'",
    )
    with tampered(ledger, *swap):
        verdict = found(tokenfleet("audit", "verify", "--json"))
    assert verdict["differences"] == []
    assert {each["request_id"] for each in verdict["breaks"]} & {"r40", "r41"}


def test_a_changed_head_is_found(ledger: str, tokenfleet: Callable[..., Result]):
    with tampered(ledger, "UPDATE ledger_days SET head = sha256('x') WHERE rows > 1"):
        verdict = found(tokenfleet("audit", "verify", "--json"))
    assert verdict["differences"] == []
    assert [each["kind"] for each in verdict["breaks"]] == ["recomputed"]


def test_only_the_window_asked_for_is_compared(ledger: str, tokenfleet: Callable[..., Result]):
    with tampered(ledger, f"UPDATE ledger SET output_tokens = 77 WHERE request_id = 'r{ROWS - 1}'"):
        late = found(tokenfleet("audit", "verify", "--json", "--from", "2h", "--to", "30m"))
        recent = msgspec.json.decode(tokenfleet("audit", "verify", "--json", "--from", "30m").stdout)
    assert [each["request_id"] for each in late["differences"]] == [f"r{ROWS - 1}"]
    assert recent["differences"] == []


async def test_what_the_accountant_has_yet_to_book_is_no_difference(
    ledger: str, nats_server: NatsServer, tokenfleet: Callable[..., Result]
):
    async with connected(nats_server, "ingress") as ingress:
        await publish(ingress, [ended(f"later{number}") for number in range(5)])
    behind = await asyncio.to_thread(tokenfleet, "audit", "verify", "--wait", "0.5")
    assert behind.exit_code == 0, behind.output
    assert "the accountant is behind" in behind.output
    async with accountant(nats_server, ledger):
        await until_all_booked(nats_server)
    after = await asyncio.to_thread(tokenfleet, "audit", "verify")
    assert after.exit_code == 0, after.output
    assert "behind" not in after.output


async def test_a_ledger_that_is_being_written_is_verified_without_false_alarms(
    ledger: str, nats_server: NatsServer, tokenfleet: Callable[..., Result]
):
    done = asyncio.Event()

    async def traffic() -> int:
        written = 0
        async with connected(nats_server, "ingress") as ingress:
            while not done.is_set():
                await publish(ingress, [ended(f"busy{written}")])
                await asyncio.sleep(0.01)
                written += 1
        return written

    async with accountant(nats_server, ledger):
        writing = asyncio.create_task(traffic())
        await asyncio.sleep(0.3)
        results = [await asyncio.to_thread(tokenfleet, "audit", "verify") for _ in range(4)]
        done.set()
        assert await writing > 20
        await until_all_booked(nats_server)
    assert [result.exit_code for result in results] == [0] * 4, results[0].output


def test_exported_files_verify_the_ledger_and_hold_every_message(
    ledger: str, tokenfleet: Callable[..., Result], tmp_path: Path
):
    exported = tokenfleet("audit", "export", "--out", str(tmp_path / "kept"), "--per", "day", "--json")
    assert exported.exit_code == 0, exported.output
    files = [each["path"] for each in msgspec.json.decode(exported.stdout)]
    events = [event for path in files for event in read_log(Path(path))]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    arguments = [argument for path in files for argument in ("--events", path)]
    clean = tokenfleet("audit", "verify", *arguments)
    assert clean.exit_code == 0, clean.output
    with tampered(ledger, "UPDATE ledger SET output_tokens = 77 WHERE request_id = 'r30'"):
        verdict = found(tokenfleet("audit", "verify", "--json", *arguments))
    assert [each["request_id"] for each in verdict["differences"]] == ["r30"]

    again = tokenfleet("audit", "export", "--out", str(tmp_path / "kept"), "--per", "day")
    assert "exist" in str(again.exception)
    one = tokenfleet("audit", "export", "--out", str(tmp_path / "one.jsonl.gz"))
    assert one.exit_code == 0, one.output
    assert [event.data for event in read_log(tmp_path / "one.jsonl.gz")] == [event.data for event in events]


def test_a_damaged_file_cannot_verify_anything(tokenfleet: Callable[..., Result], tmp_path: Path):
    path = tmp_path / "events.jsonl.gz"
    assert tokenfleet("audit", "export", "--out", str(path)).exit_code == 0
    path.write_bytes(path.read_bytes()[:-50])
    result = tokenfleet("audit", "verify", "--events", str(path))
    assert result.exit_code == 3
    assert "cut off after line" in result.stderr


def test_a_window_without_events_cannot_be_exported(tokenfleet: Callable[..., Result], tmp_path: Path):
    result = tokenfleet(
        "audit", "export", "--out", str(tmp_path / "x.jsonl.gz"), "--from", "2021-01-01", "--to", "2021-01-02"
    )
    assert "holds nothing of that window: it has events from" in str(result.exception)


@pytest.mark.parametrize("arguments", [["--from", "soon"], ["--from", "1h", "--to", "2h"]])
def test_a_wrong_window_is_a_usage_error(tokenfleet: Callable[..., Result], arguments: list[str]):
    assert tokenfleet("audit", "verify", *arguments).exit_code == 2


def test_without_postgres_nothing_can_be_said(
    tokenfleet: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("TOKENFLEET_POSTGRES_DSN", f"postgresql://nobody@/nowhere?host={tmp_path}")
    result = tokenfleet("audit", "verify")
    assert result.exit_code == 3
    assert "TOKENFLEET_POSTGRES_DSN" in result.stderr


async def test_a_request_is_traced_by_either_id_with_its_row_and_its_place_in_the_chain(
    ledger: str, nats_server: NatsServer, tokenfleet: Callable[..., Result]
):
    async with accountant(nats_server, ledger), connected(nats_server, "operator") as bus:
        await begin(bus, "traced")
        await publish(bus, [ended("traced", ttft_s=5.0)])
        await begin(bus, "underway")
        await bus.flush()
        await until_all_booked(nats_server)
    for wanted in ("traced", "mine-traced"):
        story = msgspec.json.decode(
            (await asyncio.to_thread(tokenfleet, "audit", "trace", wanted, "--json")).stdout
        )
        assert [line["event"] for line in story["lines"]] == ["submitted", "routed", "completed"]
        [booked] = story["booked"]
        assert booked["verdict"].startswith("a miss: TTFT 5.000 s, promised 4.00 s")
        assert booked["follows"] is True
        assert booked["as_rules_say"] is True
        assert booked["sequence"] <= booked["rows"]
    text = (await asyncio.to_thread(tokenfleet, "audit", "trace", "traced")).output
    assert "its hash follows from the row before" in text
    under_way = (await asyncio.to_thread(tokenfleet, "audit", "trace", "underway")).output
    assert "it is under way: no end is recorded" in under_way
    nowhere = await asyncio.to_thread(tokenfleet, "audit", "trace", "nobody", "--since", "10s")
    assert "No request nobody is in the ledger" in str(nowhere.exception)


def test_a_tampered_row_is_named_in_its_requests_trace(ledger: str, tokenfleet: Callable[..., Result]):
    with tampered(ledger, "UPDATE ledger SET output_tokens = 77 WHERE request_id = 'r30'"):
        text = tokenfleet("audit", "trace", "r30").output
    assert "IT IS NOT what the rules make of its event" in text
    assert "ITS HASH DOES NOT FOLLOW" in text


def test_a_request_is_traced_from_exported_files_when_the_stream_is_gone(
    ledger: str, nats_server: NatsServer, tokenfleet: Callable[..., Result], tmp_path: Path
):
    path = tmp_path / "events.jsonl.gz"
    assert tokenfleet("audit", "export", "--out", str(path)).exit_code == 0
    asyncio.run(purge(nats_server))

    rows_alone = tokenfleet("audit", "trace", "r30").output
    assert "are not kept any more" in rows_alone
    assert "Ledger: completed" in rows_alone
    whole = tokenfleet("audit", "trace", "r30", "--events", str(path)).output
    assert "It is what the rules make of its event" in whole

    unverifiable = tokenfleet("audit", "verify")
    assert unverifiable.exit_code == 0, unverifiable.output
    assert "not verifiable from the stream" in unverifiable.output
    with tampered(ledger, "UPDATE ledger SET output_tokens = 77 WHERE request_id = 'r30'"):
        chain_alone = found(tokenfleet("audit", "verify", "--json"))
    assert [each["request_id"] for each in chain_alone["breaks"]] == ["r30"]
    assert tokenfleet("audit", "verify", "--events", str(path)).exit_code == 0


async def begin(bus: Bus, request_id: str) -> None:
    """What is recorded of a request before its end."""
    spec = RequestSpec(
        model="llama-70b",
        entry_site=SITE,
        ingress="ingress-1",
        input_tokens=1_000,
        max_output_tokens=100,
        block_size_tokens=64,
        client_request_id=f"mine-{request_id}",
    )

    def common(kind: str) -> dict[str, Any]:
        return {
            "event_id": event_id(request_id, 1, kind),
            "request_id": request_id,
            "attempt": 1,
            "tenant": "acme",
            "pool": POOL,
            "site": SITE,
            "time_ns": time.time_ns(),
        }

    submitted = Submitted(**common("submitted"), request=spec)
    await bus.publish(subjects.request(SITE, POOL, "submitted"), submitted)
    routed = Routed(
        **common("routed"),
        instance="engine-1",
        generation=1,
        input_tokens=1_000,
        reused_tokens=0,
        reason="least_cost",
    )
    await bus.publish(subjects.request(SITE, POOL, "routed", "ingress-1"), routed)


async def purge(nats_server: NatsServer) -> None:
    async with connected(nats_server, "operator") as bus:
        await bus._client.jetstream().purge_stream(subjects.STREAM_REQUESTS)
