"""The engine model against the clock."""

import asyncio
from collections.abc import Iterator

import pytest

from node_agent.emulated.driver import EngineDriver, Generation
from tokenfleet.blocks import text_tokens
from tokenfleet.clock import SystemClock
from tokenfleet.engine.kv_cache import Cleared, KvChange, Stored
from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.profile import LLAMA70B_TP4_H100
from tokenfleet.engine.requests import EngineRequest

INTERVAL = 4


class Engine:
    """A driver at fifty times real time, with what it told of its cache."""

    def __init__(self) -> None:
        self.changes: list[KvChange] = []
        self.stored_tokens: list[int] = []
        self.model = EngineModel(LLAMA70B_TP4_H100, 16, record_kv_changes=True)
        self.driver = EngineDriver(self.model, SystemClock(50.0), INTERVAL, self.record)

    def record(self, changes: list[KvChange]) -> None:
        self.changes += changes
        for change in changes:
            if isinstance(change, Stored):
                self.stored_tokens += self.driver.prompt_blocks(
                    change.request_id, change.first_block, len(change.hashes)
                )

    def submit(self, name: str, output_tokens: int, *, stream: bool = True) -> Generation:
        prompt = text_tokens(f"{name:64}" * 4)
        hashes = tuple((name, index) for index in range(len(prompt) // 16))
        request = EngineRequest(
            request_id=name, prompt_tokens=len(prompt), output_tokens=output_tokens, block_hashes=hashes
        )
        return self.driver.submit(request, prompt, "stop", stream=stream)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.driver.stop()


async def seen(generation: Generation) -> list[int]:
    """How many tokens there were each time the request was woken."""
    produced: list[int] = []
    while not generation.finished:
        await generation.progress()
        produced.append(generation.produced_tokens)
    return produced


async def test_a_stream_gets_its_first_token_at_once_then_chunks_and_every_token(engine: Engine):
    produced = await seen(engine.submit("a", 42))
    assert produced == sorted(produced)
    assert produced[-1] == 42
    assert len(produced) <= 2 + 42 // INTERVAL, "one wake a chunk, not one a token"


async def test_a_request_that_does_not_stream_is_woken_once(engine: Engine):
    assert await seen(engine.submit("a", 42, stream=False)) == [42]
    assert engine.driver.ended == {"stop": 1}


async def test_nobody_wakes_an_idle_engine(engine: Engine):
    await seen(engine.submit("a", 3))
    iterations = engine.model.iterations
    await asyncio.sleep(0.02)
    assert engine.model.iterations == iterations
    assert engine.model.next_event() is None


async def test_a_cancelled_request_leaves_and_the_others_go_on(engine: Engine):
    leaving, staying = engine.submit("a", 1_000), engine.submit("b", 30)
    await leaving.progress()
    engine.driver.cancel(leaving)
    assert (await seen(staying))[-1] == 30
    assert engine.driver.ended == {"abort": 1, "stop": 1}
    assert engine.model.kv.used_blocks == 0


async def test_cancelling_what_has_finished_counts_as_finished(engine: Engine):
    generation = engine.submit("a", 2)
    await seen(generation)
    engine.driver.cancel(generation)
    assert engine.driver.ended == {"stop": 1}


async def test_cache_changes_are_told_while_their_prompt_is_known(engine: Engine):
    generation = engine.submit("a", 1)
    await seen(generation)
    assert engine.stored_tokens == generation.prompt.tolist()


async def test_the_cache_is_cleared_only_when_no_request_runs(engine: Engine):
    generation = engine.submit("a", 10)
    assert not engine.driver.clear_cache()
    await seen(generation)
    assert engine.driver.clear_cache()
    assert engine.changes[-1] == Cleared()
