"""What TokenFleet reads from a real engine: its metrics and its KV events."""

import msgspec
import pytest
from engine.vllm_engine import BLOCK_TOKENS, PROFILE, say
from engine.world import PREFIX_TOKENS, SEEN_WITHIN_S, World
from running_stack import until

from tokenfleet.contracts.fleet import InstanceState

pytestmark = pytest.mark.engine

ANSWER_TOKENS = 600
"""Long enough to be seen running."""


def test_every_metric_of_a_real_engine_reaches_the_fleet_view(world: World):
    for name in world.engines:
        state = until(lambda name=name: world.observer.state(name), SEEN_WITHIN_S)
        missing = [field for field in InstanceState.__struct_fields__ if getattr(state, field) is None]
        assert not missing, f"{name}: not read: {missing}"
        assert state.reachable


def test_the_fleet_view_follows_the_engines_own_counters(world: World):
    prompt = world.ids(PREFIX_TOKENS)
    with (
        world.client as client,
        client.stream(
            "POST", "/v1/completions", json=world.body(prompt, ANSWER_TOKENS, stream=True)
        ) as answer,
    ):
        name = answer.headers["x-tokenfleet-instance"]
        until(lambda: _state(world, name).running == 1, SEEN_WITHIN_S)
        until(lambda: (_state(world, name).kv_usage or 0.0) > 0, SEEN_WITHIN_S)
        answer.read()
    engine = world.engines[name]
    until(lambda: _state(world, name).running == 0, SEEN_WITHIN_S)
    assert _state(world, name).waiting == 0
    for field, metric in (
        ("prompt_tokens", "vllm:prompt_tokens_total"),
        ("generation_tokens", "vllm:generation_tokens_total"),
        ("prefix_queries_tokens", "vllm:prefix_cache_queries_total"),
        ("prefix_hits_tokens", "vllm:prefix_cache_hits_total"),
        ("preemptions", "vllm:num_preemptions_total"),
    ):
        own = engine.metric(metric)
        until(lambda field=field, own=own: getattr(_state(world, name), field) == own, SEEN_WITHIN_S)
    assert engine.generated_tokens >= ANSWER_TOKENS


def test_an_engine_registered_with_an_inline_profile_has_it(world: World):
    for name in world.engines:
        record = world.observer.record(name)
        assert record is not None
        assert msgspec.to_builtins(record.profile).items() >= PROFILE.items()
        assert (record.block_size_tokens, record.kv_events) == (BLOCK_TOKENS, True)


def test_the_blocks_of_a_prompt_are_indexed_under_the_names_that_ingress_gives_them(world: World):
    prefix = world.ids(PREFIX_TOKENS)
    before = world.tokenpilot()["blocks"]
    name = world.cache(prefix)
    other = world.other(name).name
    names = world.block_names(prefix)
    assert len(names) == PREFIX_TOKENS // BLOCK_TOKENS
    assert names <= world.observer.blocks(name)
    assert not names & world.observer.blocks(other)
    assert world.tokenpilot()["blocks"] >= before + len(names)
    summary = world.agent(name)
    assert summary["kv_complete"]
    assert summary["kv_blocks"] >= len(names)
    say(f"{name}: {summary['kv_blocks']} blocks indexed; TokenPilot: {world.tokenpilot()['blocks']}")


def test_engines_that_hash_with_different_seeds_agree_on_a_prompts_blocks(world: World):
    prompt = world.ids(PREFIX_TOKENS)
    # Straight to the engines, so that both hold it.
    for engine in world.engines.values():
        engine.complete(prompt)
    names = world.block_names(prompt)
    for name in world.engines:
        until(lambda name=name: names <= world.observer.blocks(name), SEEN_WITHIN_S)


def _state(world: World, name: str) -> InstanceState:
    state = world.observer.state(name)
    assert state is not None
    return state
