"""A client that leaves stops the work at the real engine."""

import json
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from engine.vllm_engine import BLOCK_TOKENS, say
from engine.world import SEEN_WITHIN_S, World
from running_stack import until

pytestmark = pytest.mark.engine

LONG_ANSWER_TOKENS = 14_000
"""More than the engine makes in any time these tests take."""


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "not streamed"])
def test_a_client_that_leaves_stops_generation_at_the_engine(world: World, stream: bool):
    before = {name: engine.generated_tokens for name, engine in world.engines.items()}
    known = set(world.observer.routed)
    connection = _ask(world, stream)
    request_id = until(lambda: next(iter(world.observer.routed.keys() - known), None), SEEN_WITHIN_S)
    engine = world.engines[world.observer.routed[request_id].instance]
    if stream:
        with connection.getresponse() as answer:
            assert answer.status == 200
            assert all(answer.readline() for _ in range(40))
    until(lambda: engine.generated_tokens - before[engine.name] >= 20, SEEN_WITHIN_S)
    assert engine.running == 1
    connection.close()

    until(lambda: engine.aborted(request_id), SEEN_WITHIN_S)
    until(lambda: engine.running == 0, SEEN_WITHIN_S)
    stopped_at = engine.generated_tokens
    time.sleep(1.0)
    assert engine.generated_tokens == stopped_at
    made = stopped_at - before[engine.name]
    assert made < LONG_ANSWER_TOKENS
    until(lambda: getattr(world.observer.state(engine.name), "running", None) == 0, SEEN_WITHIN_S)
    say(f"{engine.name}: aborted after {made:.0f} of {LONG_ANSWER_TOKENS:,} tokens")


def _ask(world: World, stream: bool) -> HTTPConnection:
    """Send a request and leave its answer unread."""
    address = urlsplit(world.stack.api_url)
    assert address.hostname is not None
    connection = HTTPConnection(address.hostname, address.port, timeout=120.0)
    body = world.body(world.ids(2 * BLOCK_TOKENS), LONG_ANSWER_TOKENS, stream=stream)
    headers = {"Authorization": f"Bearer {world.stack.api_key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection
