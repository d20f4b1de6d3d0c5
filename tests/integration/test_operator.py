"""What operators change reaches running services without a restart, and two of them never undo each other's change."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import NatsServer

from console.main import cli
from console.operator import key_hash, key_id, live_policy, reset_policy, set_policy, set_tenant
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.control import Adjusted
from tokenfleet.contracts.policy import ClassObjective, Policy
from tokenfleet.errors import PolicyError
from tokenfleet.live import LivePolicy, LiveTenants

pytestmark = pytest.mark.integration

Command = Callable[..., Result]


@pytest.fixture
def tokenfleet(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A `tokenfleet` command as the operator."""
    for name, value in nats_server.environment("operator").items():
        monkeypatch.setenv(name, value)
    return lambda *arguments, **options: CliRunner().invoke(cli, list(arguments), **options)


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    connection = await Bus.connect(nats_server.settings("operator"), "test")
    yield connection
    await connection.drain()


async def command(tokenfleet: Command, *arguments: str) -> str:
    """What a command that works prints; off the loop, for it runs one of its own."""
    result = await asyncio.to_thread(tokenfleet, *arguments)
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    return result.output.strip()


async def until(condition: Callable[[], object], timeout_s: float = 2.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_service_follows_a_tenants_whole_life(nats_server: NatsServer, tokenfleet: Command):
    ingress = await Bus.connect(nats_server.settings("ingress"), "ingress")
    live = LiveTenants()
    await live.watch(ingress)

    first = await command(
        tokenfleet, "tenant", "create", "acme", "--tier", "priority", "--weight", "2", "--model", "tiny",
        "--site", "local", "--tokens-per-minute", "60000", "--max-concurrency", "5", "--when-late", "wait",
        "objectives.interactive.ttft_s=2", "objectives.batch.e2e_s=600",
    )  # fmt: skip
    await until(lambda: key_hash(first) in live.by_key_hash)
    record = live.by_name["acme"]
    assert (record.tier, record.weight, record.models, record.sites) == (
        "priority",
        2.0,
        ("tiny",),
        ("local",),
    )
    assert (record.tokens_per_minute, record.max_concurrency, record.when_late) == (60_000, 5, "wait")
    assert record.objectives == {
        "interactive": ClassObjective(ttft_s=2.0, tpot_s=0.1),
        "batch": ClassObjective(e2e_s=600.0),
    }

    await command(
        tokenfleet, "tenant", "set", "acme", "--weight", "3", "tokens_per_minute=null", "models=null"
    )
    await until(lambda: live.by_name["acme"].weight == 3.0)
    assert (live.by_name["acme"].tokens_per_minute, live.by_name["acme"].models) == (None, None)
    assert live.by_name["acme"].tier == "priority"

    second = await command(tokenfleet, "tenant", "rotate-key", "acme", "--keep-old")
    await until(lambda: key_hash(second) in live.by_key_hash)
    assert key_hash(first) in live.by_key_hash
    await command(tokenfleet, "tenant", "revoke-key", "acme", key_id(key_hash(first)))
    await until(lambda: key_hash(first) not in live.by_key_hash)
    third = await command(tokenfleet, "tenant", "rotate-key", "acme")
    await until(lambda: key_hash(third) in live.by_key_hash)
    assert key_hash(second) not in live.by_key_hash

    await command(tokenfleet, "tenant", "delete", "acme", "--yes")
    await until(lambda: "acme" not in live.by_name)
    assert live.by_key_hash == {}
    await ingress.drain()


def test_a_key_is_printed_once_and_only_its_id_is_shown(tokenfleet: Command):
    key = tokenfleet("tenant", "create", "shown once").output.strip()
    for arguments in (
        ("list",),
        ("list", "--json"),
        ("show", "shown once"),
        ("show", "shown once", "--json"),
    ):
        output = tokenfleet("tenant", *arguments).output
        assert "shown once" in output
        assert key not in output
        assert key_hash(key) not in output
    shown = json.loads(tokenfleet("tenant", "show", "shown once", "--json").output)
    assert shown["keys"] == [key_id(key_hash(key))]
    assert "0 keys left" in tokenfleet("tenant", "revoke-key", "shown once", key).output
    assert json.loads(tokenfleet("tenant", "show", "shown once", "--json").output)["keys"] == []


def test_deleting_asks_first(tokenfleet: Command):
    tokenfleet("tenant", "create", "asked")
    declined = tokenfleet("tenant", "delete", "asked", input="n\n")
    assert declined.exit_code == 1
    assert tokenfleet("tenant", "show", "asked").exit_code == 0
    assert tokenfleet("tenant", "delete", "asked", input="y\n").exit_code == 0
    assert tokenfleet("tenant", "show", "asked").exit_code == 1
    assert tokenfleet("tenant", "create", "asked").exit_code == 0, "its name is free again"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("set", "acmme", "--weight", "2"), "no tenant named 'acmme'. Nearest: acme2"),
        (("rotate-key", "acmme"), "no tenant"),
        (("delete", "acmme", "--yes"), "no tenant"),
        (("revoke-key", "acme2", "000000000000"), "no such key"),
        (("create", "acme2"), "exists"),
        (("create", ""), "not empty"),
        (("create", "new", "--weight", "0"), "weight"),
        (("set", "acme2", "objectives.interactive.ttft=1"), "Nearest: objectives.interactive.ttft_s"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    tokenfleet: Command, arguments: tuple[str, ...], complaint: str
):
    tokenfleet("tenant", "create", "acme2")
    before = tokenfleet("tenant", "list", "--json").output
    failed = tokenfleet("tenant", *arguments)
    assert failed.exit_code == 1
    assert complaint in str(failed.exception)
    assert tokenfleet("tenant", "list", "--json").output == before


async def test_two_operators_at_once_both_get_their_change(bus: Bus, tokenfleet: Command):
    await command(tokenfleet, "tenant", "create", "busy")
    await asyncio.gather(
        set_tenant(bus, "busy", ["weight=7"]),
        set_tenant(bus, "busy", ["max_concurrency=3"]),
        set_policy(bus, ["queue.requests=77"]),
        set_policy(bus, ["long_context_tokens=9000"]),
    )
    shown = json.loads(await command(tokenfleet, "tenant", "show", "busy", "--json"))
    assert (shown["weight"], shown["max_concurrency"]) == (7.0, 3)
    policy = json.loads(await command(tokenfleet, "policy", "show"))
    assert (policy["queue"]["requests"], policy["long_context_tokens"]) == (77, 9_000)
    await reset_policy(bus, [])


async def test_a_policy_change_reaches_a_service_and_one_that_contradicts_itself_changes_nothing(
    nats_server: NatsServer, bus: Bus, tokenfleet: Command
):
    slomax = await Bus.connect(nats_server.settings("slomax"), "slomax")
    live = LivePolicy()
    await live.watch(slomax)
    await command(
        tokenfleet, "policy", "set", "shares.batch.floor=0.05", "objectives.interactive.percentile=0.99"
    )
    await until(lambda: live.current.shares["batch"].floor == 0.05)
    assert live.current.objectives["interactive"].percentile == 0.99
    with pytest.raises(PolicyError, match="add up to"):
        await set_policy(bus, ["shares.batch.floor=0.9"])
    assert json.loads(await command(tokenfleet, "policy", "diff", "--json")) == {
        "shares.batch.floor": {"default": 0.02, "live": 0.05},
        "objectives.interactive.percentile": {"default": 0.95, "live": 0.99},
    }
    planned = json.loads(await command(tokenfleet, "policy", "diff", "routing=round_robin", "--json"))
    assert planned == {"routing": {"live": "predicted", "would_be": "round_robin"}}
    await command(tokenfleet, "policy", "reset", "shares.batch")
    await until(lambda: live.current.shares == Policy().shares)
    assert live.current.objectives["interactive"].percentile == 0.99
    await command(tokenfleet, "policy", "reset", "--yes")
    await until(lambda: live.current == Policy())
    assert await command(tokenfleet, "policy", "diff") == "No difference."
    await slomax.drain()


async def test_a_policy_that_cannot_be_read_is_put_right_by_a_reset(bus: Bus, tokenfleet: Command):
    bucket = await bus.bucket(subjects.BUCKET_POLICY)
    await bucket.put(subjects.POLICY_KEY, b'{"shares": 7}')
    failed = await asyncio.to_thread(tokenfleet, "policy", "set", "admission=false")
    assert "cannot be read" in str(failed.exception)
    await command(tokenfleet, "policy", "reset", "--yes")
    assert json.loads(await command(tokenfleet, "policy", "show"))["admission"] is True


async def test_a_stream_of_an_older_version_is_brought_up_to_date_by_the_operator_and_stops_no_service(
    nats_server: NatsServer, bus: Bus
):
    js = bus._client.jetstream()
    info = await js.stream_info(subjects.STREAM_FLEET)
    await js.update_stream(replace(info.config, subjects=["tf.v1.*.history.*"]))
    service = await Bus.connect(nats_server.settings("slomax"), "slomax")
    await service.drain()
    operator = await Bus.connect(nats_server.settings("operator"), "test")
    info = await js.stream_info(subjects.STREAM_FLEET)
    assert set(info.config.subjects or ()) == set(subjects.fleet_stream("local"))
    await operator.drain()


async def test_a_rollout_goes_from_a_canary_to_all_and_what_was_rolled_back_is_shown(
    bus: Bus, tokenfleet: Command
):
    async def shown() -> dict[str, dict[str, Any]]:
        listed = json.loads(await command(tokenfleet, "rollout", "show", "qwen2.5", "--json"))
        return {one["version"]: one for one in listed}

    await command(tokenfleet, "rollout", "set", "qwen2.5", "1.0=0.9", "1.1=0.1", "--warm-up", "5s")
    assert {name: one["share"] for name, one in (await shown()).items()} == {"1.0": 0.9, "1.1": 0.1}
    rolled_back = Adjusted(
        time_ns=1,
        site="local",
        pool="qwen2.5@1.1",
        knob="fleet.rollouts.qwen2.5.weights.1.1",
        before=0.1,
        after=0.0,
        reason="half of its requests failed",
    )
    subject = subjects.control("local", "qwen2.5@1.1")
    await bus.publish_acked(subject, rolled_back.model_dump_json().encode(), "one")
    assert (await shown())["1.1"]["rolled_back"] == {"local": "half of its requests failed"}
    await command(tokenfleet, "rollout", "set", "qwen2.5", "1.1=1", "1.0=0")
    assert (await shown())["1.1"]["rolled_back"] == {}
    await command(tokenfleet, "rollout", "drain", "qwen2.5", "1.0")
    rollout = (await live_policy(bus)).fleet.rollouts["qwen2.5"]
    assert (rollout.weights, rollout.drained, rollout.warm_up_s) == ({"1.0": 0, "1.1": 1}, ("1.0",), 5.0)

    failed = await asyncio.to_thread(tokenfleet, "rollout", "drain", "qwen2.5", "1.1")
    assert isinstance(failed.exception, PolicyError) and "No other version" in str(failed.exception)
    assert (await live_policy(bus)).fleet.rollouts["qwen2.5"] == rollout
    await command(tokenfleet, "rollout", "end", "qwen2.5")
    assert "any version" in await command(tokenfleet, "rollout", "show")
