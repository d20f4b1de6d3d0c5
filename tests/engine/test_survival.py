"""A real engine that dies and comes back."""

import time

import pytest
from engine.vllm_engine import BLOCK_TOKENS, say
from engine.world import PREFIX_TOKENS, SEEN_WITHIN_S, World
from running_stack import until

pytestmark = pytest.mark.engine


def test_a_killed_engines_blocks_leave_the_index_traffic_moves_and_after_a_restart_it_is_used_again(
    world: World,
):
    homes = world.homes()
    dead = world.engines["vllm-1"]
    left = world.other(dead.name)
    prefix = homes[dead.name]
    known = world.observer.record(dead.name)
    assert known is not None

    dead.kill()
    killed_s = time.monotonic()
    moved = world.complete([*prefix, *world.ids(BLOCK_TOKENS)])
    assert moved.headers["x-tokenfleet-instance"] == left.name
    say(f"answered by {left.name} {time.monotonic() - killed_s:.1f} s after the kill")
    until(lambda: world.observer.record(dead.name) is None, SEEN_WITHIN_S)
    until(lambda: world.tokenpilot()["blocks"] == len(world.observer.blocks(left.name)), SEEN_WITHIN_S)
    say(f"{dead.name} and its blocks gone {time.monotonic() - killed_s:.1f} s after the kill")
    assert world.block_names(prefix) <= world.observer.blocks(left.name), "the prefix has a new home"
    hits = left.hits_tokens
    again = world.complete([*prefix, *world.ids(BLOCK_TOKENS)])
    assert again.headers["x-tokenfleet-instance"] == left.name
    assert left.hits_tokens - hits == PREFIX_TOKENS

    dead.start()
    dead.wait_ready()
    ready_s = time.monotonic()
    world.stack.wait_ready(2)
    record = until(lambda: world.observer.record(dead.name), SEEN_WITHIN_S)
    assert record.generation > known.generation, "another process is another generation"
    until(lambda: world.agent(dead.name)["kv_complete"], SEEN_WITHIN_S)
    assert not world.observer.blocks(dead.name), (
        "what the old process had cached is not believed of the new one"
    )
    fresh = world.homes()[dead.name]
    hits = dead.hits_tokens
    answer = world.complete([*fresh, *world.ids(BLOCK_TOKENS)])
    assert answer.headers["x-tokenfleet-instance"] == dead.name
    assert dead.hits_tokens - hits == PREFIX_TOKENS
    say(f"{dead.name} used again {time.monotonic() - ready_s:.1f} s after it was ready")
