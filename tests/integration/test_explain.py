"""Finding one request's events among many, on a real NATS server."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from conftest import NatsServer
from fleets import POOL, request

from console.main import cli
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.ledger import LedgerEntries, LedgerEntry, LedgerLookup
from tokenfleet.contracts.requests import Ended, Routed, Submitted, event_id, terminal_event_id
from tokenfleet.request_story import NotFoundError, find_events

pytestmark = pytest.mark.integration

SITE = "local"
OTHERS = 1_500
HOUR_S = 3600.0


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    connection = await Bus.connect(nats_server.settings("operator"), "test")
    yield connection
    await connection.drain()


async def find(bus: Bus, wanted: str, since_s: float = HOUR_S) -> tuple[str, list[str], tuple[str, ...]]:
    """The id and the kinds of the events found, and the other ids."""
    events, others = await find_events(bus, SITE, wanted, since_s, lambda done: None)
    assert len({each.event.request_id for each in events}) == 1
    return events[0].event.request_id, [each.kind for each in events], others


def common(request_id: str, kind: str) -> dict[str, Any]:
    return {
        "event_id": event_id(request_id, 1, kind),
        "request_id": request_id,
        "attempt": 1,
        "tenant": "acme",
        "pool": POOL,
        "site": SITE,
        "time_ns": time.time_ns(),
    }


async def begin(bus: Bus, request_id: str, client_id: str | None = None) -> None:
    spec = request(client_request_id=client_id)
    await bus.publish(
        subjects.request(SITE, "llama-70b", "submitted"),
        Submitted(**common(request_id, "submitted"), request=spec),
    )
    routed = Routed(
        **common(request_id, "routed"),
        instance="a",
        generation=1,
        input_tokens=1_000,
        reused_tokens=0,
        reason="least_cost",
    )
    await bus.publish(subjects.request(SITE, POOL, "routed", "ingress-1"), routed)


async def end(bus: Bus, request_id: str, client_id: str | None = None) -> None:
    fields = common(request_id, "completed") | {"event_id": terminal_event_id(request_id)}
    ended = Ended(
        **fields,
        outcome="completed",
        reason="stop",
        status=200,
        model="llama-70b",
        stream=True,
        submitted_ns=time.time_ns() - 1_000_000,
        e2e_s=0.001,
        client_request_id=client_id,
    )
    await bus.publish_acked(subjects.request(SITE, POOL, "completed"), ended, ended.event_id)


async def test_a_request_is_found_among_thousands_by_either_id_and_with_only_its_own_events(bus: Bus):
    for number in range(OTHERS):
        await begin(bus, f"other-{number}")
        if number == OTHERS // 2:
            await begin(bus, "wanted", "clients-wanted")
            await end(bus, "wanted", "clients-wanted")
    await bus.flush()
    for wanted in ("wanted", "clients-wanted"):
        assert await find(bus, wanted) == ("wanted", ["submitted", "routed", "completed"], ())


async def test_of_a_clients_id_used_twice_the_latest_is_explained_and_the_other_named(bus: Bus):
    for request_id in ("first", "second"):
        await begin(bus, request_id, "used-twice")
        await end(bus, request_id, "used-twice")
    assert await find(bus, "used-twice") == ("second", ["submitted", "routed", "completed"], ("first",))


async def test_a_request_under_way_is_found_although_no_ledger_knows_it(bus: Bus):
    await begin(bus, "running")
    await bus.flush()
    assert await find(bus, "running") == ("running", ["submitted", "routed"], ())


async def test_an_id_that_is_part_of_another_is_not_taken_for_it(bus: Bus):
    await begin(bus, "long-name-1", "long-client-1")
    await bus.flush()
    for part in ("long-name", "client-1", "acme"):
        with pytest.raises(NotFoundError, match="--since"):
            await find(bus, part)


async def test_what_was_submitted_before_the_span_asked_for_is_not_searched(bus: Bus):
    await begin(bus, "early")
    await bus.flush()
    await asyncio.sleep(0.4)
    with pytest.raises(NotFoundError, match=r"in the last 0\.2 s"):
        await find(bus, "early", since_s=0.2)


async def test_the_ledger_says_when_a_request_was_so_that_no_span_is_searched(bus: Bus):
    await begin(bus, "in-ledger", "clients-in-ledger")
    await end(bus, "in-ledger")
    await begin(bus, "gone")

    async def answer(lookup: LedgerLookup) -> LedgerEntries:
        known = {"clients-in-ledger": ("in-ledger", time.time_ns()), "gone": ("kept-no-more", 10**18)}
        found = known.get(lookup.id)
        if found is None:
            return LedgerEntries(entries=())
        name, at_ns = found
        entry = LedgerEntry(request_id=name, submitted_ns=at_ns, ended_ns=at_ns, outcome="completed")
        return LedgerEntries(entries=(entry,))

    stop = await bus.serve(subjects.ledger_lookup(SITE), LedgerLookup, answer)
    try:
        await asyncio.sleep(0.1)
        assert (await find(bus, "clients-in-ledger", since_s=0.05))[0] == "in-ledger"
        with pytest.raises(NotFoundError, match=r"submitted at 2001-09-09 .* does not hold its events"):
            await find(bus, "gone")
    finally:
        await stop()


async def test_the_command_prints_json_as_the_operator(
    bus: Bus, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
):
    await begin(bus, "by-command")
    await bus.flush()
    for name, value in nats_server.environment("operator").items():
        monkeypatch.setenv(name, value)
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["explain", "by-command", "--json"])
    assert result.exit_code == 0, result.output
    assert msgspec.json.decode(result.stdout)["attempts"][0]["decision"]["reason"] == "least_cost"


def test_without_a_stack_the_command_says_how_to_name_one(tmp_path: Path):
    result = CliRunner().invoke(cli, ["explain", "any", "--state-dir", str(tmp_path)])
    assert "No stack runs from" in str(result.exception)
