"""Events that cannot be booked: kept with the reason, once each, and never in the way of others."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from accountants import POOL, SITE, accountant, ended_request
from booking import until_booked
from click.testing import CliRunner, Result
from conftest import NatsServer
from nats.js.api import DiscardPolicy
from prometheus_client import REGISTRY

from console.main import cli
from goodput_accountant.dead_letters import LARGEST_PAYLOAD_BYTES, DeadLetters
from goodput_accountant.dead_letters_command import find
from goodput_accountant.main import DURABLE
from goodput_accountant.metrics import Metrics
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.bus.storage import streams
from tokenfleet.contracts.dead_letters import DeadLetter
from tokenfleet.contracts.ledger import LedgerEntries, LedgerLookup
from tokenfleet.errors import ContractError

pytestmark = pytest.mark.integration

PATIENCE_S = 40.0
SUBJECT = subjects.request(SITE, POOL, "completed")


@contextlib.asynccontextmanager
async def operator(nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_server.settings("operator"), "operator")
    try:
        yield bus
    finally:
        await bus.drain()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.02)


async def booked(bus: Bus, request_id: str) -> bool:
    found = await bus.request(subjects.ledger_lookup(SITE), LedgerLookup(id=request_id), LedgerEntries)
    return bool(found.entries)


def counted(reason: str) -> float:
    """What Prometheus is told."""
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "tokenfleet_ledger_dead_letters_total"
        and sample.labels.get("tokenfleet_reason") == reason
    )


def test_the_stream_keeps_the_newest_for_a_month_within_its_bound():
    [config] = [each for each in streams(SITE, (SITE,)) if each.name == "DEAD_LETTERS"]
    assert (config.max_age, config.max_bytes, config.discard) == (
        30 * 86_400.0,
        256 * 2**20,
        DiscardPolicy.OLD,
    )


async def test_a_letter_says_what_was_refused_where_and_why(nats_server: NatsServer, postgres_dsn: str):
    data = b'{"event_id": "' + b"x" * (LARGEST_PAYLOAD_BYTES + 1_000)
    async with accountant(nats_server, postgres_dsn), operator(nats_server) as bus:
        await bus.publish_acked(SUBJECT, data, "torn")
        await until_booked(bus)
        state = await bus.stream_state(subjects.STREAM_REQUESTS)
        [letter] = (await find(bus, 0, 10)).letters
        assert counted("malformed") == 1  # of this accountant
    assert (letter.reason, letter.stream, letter.sequence) == (
        "malformed",
        subjects.STREAM_REQUESTS,
        state.last_sequence,
    )
    assert (letter.subject, letter.site) == (SUBJECT, SITE)
    assert "not a valid Ended" in letter.detail
    assert (letter.payload, letter.payload_bytes) == (data[:LARGEST_PAYLOAD_BYTES], len(data))
    assert letter.payload_sha256 == hashlib.sha256(data).hexdigest()


async def test_an_event_delivered_again_is_one_letter_and_counts_once(
    nats_server: NatsServer, postgres_dsn: str
):
    async with accountant(nats_server, postgres_dsn) as service, operator(nats_server) as bus:
        total = (await find(bus, 0, 0)).total
        before = counted("not_credible")
        metrics = Metrics(service.observability.meter)
        # Two accountants that were given the same event, and one of them twice.
        both = [DeadLetters(service.bus, metrics, service.clock, SITE) for _ in range(2)]
        for each in (*both, both[0]):
            letter = each.letter(SUBJECT, 77, b"{}", "not_credible", ContractError("negative"))
            assert await each.store([letter]) == []
        found = await find(bus, 0, 1)
        assert found.total == total + 1
        assert counted("not_credible") == before + 1
        # After an outage longer than the stream remembers ids: the same letter under another id of its message.
        again = msgspec.structs.replace(found.letters[0], time_ns=time.time_ns())
        await bus.publish_acked(subjects.dead_letter(SITE), again, "an hour later")
        assert (await find(bus, 0, 1)).total == total + 1
        # Of a stream set up anew, another event with that sequence.
        other = both[0].letter(SUBJECT, 77, b"[]", "not_credible", ContractError("negative"))
        assert await both[0].store([other]) == []
        assert (await find(bus, 0, 1)).total == total + 2


async def test_while_letters_cannot_be_stored_others_are_booked_and_the_event_comes_again(
    nats_server: NatsServer, postgres_dsn: str
):
    async with accountant(nats_server, postgres_dsn), operator(nats_server) as bus:
        manager = bus._client.jsm()  # type: ignore[attr-defined]
        await manager.delete_stream(subjects.STREAM_DEAD_LETTERS)
        await bus.publish_acked(SUBJECT, b"{", "unkept")
        await bus.publish_acked(SUBJECT, ended_request("unhindered"), "unhindered.end")
        await until(lambda: booked(bus, "unhindered"))

        async def one_is_left() -> bool:
            return await bus.consumer_backlog(subjects.STREAM_REQUESTS, DURABLE) == 1

        await until(one_is_left)  # not acknowledged: it would come again if this accountant died
        async with operator(nats_server):  # whoever connects sets up the streams that are missing
            pass
        await until_booked(bus)
        [letter] = (await find(bus, 0, 10)).letters
    assert letter.payload == b"{"


@pytest.fixture(scope="module")
def tokenfleet(nats_server: NatsServer, postgres_dsn: str) -> Callable[..., Result]:
    """Run a command as the operator, after some events were refused: ten malformed, three not credible."""

    async def fill() -> None:
        async with operator(nats_server) as bus:
            manager = bus._client.jsm()  # type: ignore[attr-defined]
            await manager.purge_stream(subjects.STREAM_DEAD_LETTERS)
            async with accountant(nats_server, postgres_dsn):
                for number in range(10):
                    await bus.publish_acked(SUBJECT, b'{"secret": "%d' % number, f"bad{number}")
                for number in range(3):
                    odd = ended_request(f"odd{number}", output_tokens=-1 - number)
                    await bus.publish_acked(SUBJECT, odd, odd.event_id)
                await until_booked(bus)

    asyncio.run(fill())

    def run(*arguments: str) -> Result:
        environment = nats_server.environment("operator")
        return CliRunner().invoke(cli, ["ledger", "dead-letters", *arguments], env=environment)

    return run


def test_a_person_sees_what_was_refused_how_often_and_why_newest_first(tokenfleet: Callable[..., Result]):
    result = tokenfleet("--limit", "4")
    assert result.exit_code == 0, result.output
    assert "Dead letters: 13" in result.output
    assert "The newest 4" in result.output
    assert result.output.index("not credible: -3") < result.output.index("not credible: -2")
    assert SUBJECT in result.output
    assert "secret" not in result.output


def test_a_program_gets_the_same_as_json_without_payloads_unless_it_asks(
    tokenfleet: Callable[..., Result],
):
    found = msgspec.json.decode(tokenfleet("--json", "--limit", "5").output)
    assert found["total"] == 13
    assert found["by_reason"] == {"malformed": 10, "not_credible": 3}
    assert [letter["reason"] for letter in found["letters"]] == ["not_credible"] * 3 + ["malformed"] * 2
    assert not any("payload" in letter for letter in found["letters"])
    asked = tokenfleet("--json", "--payload", "--limit", "5").output
    letter = msgspec.json.decode(
        msgspec.json.encode(msgspec.json.decode(asked)["letters"][4]), type=DeadLetter
    )
    assert letter.payload == b'{"secret": "8'


def test_payloads_are_shown_on_request_without_what_could_steer_a_terminal(
    tokenfleet: Callable[..., Result], nats_server: NatsServer
):
    async def refuse() -> None:
        async with operator(nats_server) as bus:
            letter = DeadLetter(
                letter_id="x",
                site=SITE,
                time_ns=time.time_ns(),
                reason="malformed",
                detail="[red]oh\x1b[31m",
                stream="REQUESTS",
                sequence=1,
                subject=SUBJECT,
                payload_bytes=7,
                payload=b"\x1b]0;hi\xff",
                payload_sha256="",
            )
            await bus.publish_acked(subjects.dead_letter(SITE), letter, "x")

    asyncio.run(refuse())
    shown = tokenfleet("--payload", "--limit", "1").output
    assert "\x1b" not in shown
    assert r"[red]oh\x1b[31m" in shown
    assert r"\x1b]0;hi\xff" in shown


def test_a_time_without_dead_letters_and_wrong_options_get_a_clear_message(
    tokenfleet: Callable[..., Result],
):
    time.sleep(1.1)
    assert "No dead letters." in tokenfleet("--last", "1s").output
    assert tokenfleet("--last", "sometime").exit_code == 2
    assert tokenfleet("--limit", "-1").exit_code == 2
    assert "Examples:" in tokenfleet("--help").output
