"""Repeated prefixes go to the real engine that holds them, and what is predicted of its cache is true."""

import pytest
from engine.vllm_engine import BLOCK_TOKENS, say
from engine.world import PREFIX_BLOCKS, PREFIX_TOKENS, World

pytestmark = pytest.mark.engine

REPEATS = 4


def test_a_repeated_prefix_goes_to_the_engine_that_holds_it_and_is_found_there(world: World):
    for name, prefix in world.homes().items():
        engine, other = world.engines[name], world.other(name)
        hits, other_hits = engine.hits_tokens, other.hits_tokens
        for _ in range(REPEATS):
            answer = world.complete([*prefix, *world.ids(2 * BLOCK_TOKENS)])
            assert answer.headers["x-tokenfleet-instance"] == name
        assert engine.hits_tokens - hits == REPEATS * PREFIX_TOKENS
        assert other.hits_tokens == other_hits
        say(f"{name}: {engine.hits_tokens - hits:.0f} tokens found in its cache; {other.name}: 0")


def test_the_reuse_predicted_is_the_reuse_the_engine_reports(world: World):
    reused_tokens = 0
    for name, prefix in world.homes().items():
        for shared_blocks in (PREFIX_BLOCKS, 20, 7, 1):
            world.settle()
            answer = world.complete([*prefix[: shared_blocks * BLOCK_TOKENS], *world.ids(3 * BLOCK_TOKENS)])
            routed = world.routed(answer)
            assert answer.headers["x-tokenfleet-instance"] == routed.instance
            if shared_blocks == PREFIX_BLOCKS:
                assert routed.instance == name
            reported = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert routed.reused_tokens == reported
            reused_tokens += reported
    assert reused_tokens >= len(world.engines) * PREFIX_TOKENS


def test_an_index_fed_by_an_unbroken_stream_is_called_exact(world: World):
    world.cache(world.ids(PREFIX_TOKENS))
    routed = world.routed(world.complete(world.ids(PREFIX_TOKENS)))
    quality = {candidate.instance: candidate.index for candidate in routed.candidates}
    assert quality == dict.fromkeys(world.engines, "exact")
    assert world.tokenpilot()["index"] == {"exact": len(world.engines)}
