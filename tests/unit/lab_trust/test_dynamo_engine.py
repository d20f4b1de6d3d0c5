"""This project's engine model, given the timing of Dynamo's mock engine, times requests as that does.

The expected milliseconds were reported by ai-dynamo-runtime 1.6.1 for the same requests.
"""

import msgspec
import pytest

from lab.trust.dynamo_engine import BLOCK_TOKENS, DYNAMO_MOCK, ReplayEngine, dynamo_timing
from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.profile import iteration_s
from tokenfleet.engine.requests import EngineEvent, EngineRequest

END_S = 1_000.0


def request(name: str, prompt_tokens: int, output_tokens: int) -> EngineRequest:
    hashes = [(name, index) for index in range(prompt_tokens // BLOCK_TOKENS)]
    return EngineRequest(
        request_id=name, prompt_tokens=prompt_tokens, output_tokens=output_tokens, block_hashes=hashes
    )


def engine() -> EngineModel:
    return EngineModel(DYNAMO_MOCK, BLOCK_TOKENS, timing=dynamo_timing())


def times_ms(events: list[EngineEvent], name: str) -> list[float]:
    return [event.time_s * 1000 for event in events if event.request_id == name]


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "reported_ms"),
    [(1_000, 4, [32.105859, 49.480621]), (20_000, 200, [415.183328, 1_761.587814])],
)
def test_a_single_request_takes_as_long_as_in_dynamos_replay(
    prompt_tokens: int, output_tokens: int, reported_ms: list[float]
):
    model = engine()
    model.add(request("a", prompt_tokens, output_tokens), 0.0)
    assert times_ms(model.advance(END_S), "a") == pytest.approx(reported_ms, abs=1e-3)


def test_a_prompt_beside_a_decoding_request_delays_both_as_in_dynamos_replay():
    model = engine()
    model.add(request("first", 1_000, 30), 0.0)
    model.add(request("second", 20_000, 3), 0.10025)
    events = model.advance(END_S)
    assert times_ms(events, "first") == pytest.approx([32.105859, 617.296760], abs=1e-3)
    assert times_ms(events, "second") == pytest.approx([534.159928, 547.784433], abs=1e-3)


def test_an_engine_with_its_own_timing_is_never_looked_at_too_late():
    model = engine()
    model.add(request("a", 5_000, 400), 0.0)
    looks = 0
    while (upcoming := model.next_event(1_000)) is not None:
        for event in model.advance(upcoming.time_s):
            assert event.time_s == upcoming.time_s, "an event is seen when it happens, not after"
        looks += 1
    assert looks < 20, "not once per token"


def test_decoding_on_at_once_is_the_same_as_one_iteration_at_a_time():
    profile = msgspec.structs.replace(DYNAMO_MOCK, kv_capacity_tokens=128 * BLOCK_TOKENS)

    def run(steps: int) -> tuple[list[EngineEvent], int]:
        model = EngineModel(profile, BLOCK_TOKENS, timing=dynamo_timing(profile.kv_capacity_tokens))
        events: list[EngineEvent] = []
        for index in range(4):
            model.add(request(str(index), 1_800, 300), index * 0.01)
        for step in range(1, steps + 1):
            events += model.advance(1.0 + 20.0 * step / steps)
        assert model.counters.preemptions > 0, "the KV blocks run out"
        return events, model.counters.generation_tokens

    assert run(1) == run(20_000)
    assert run(1)[1] == 4 * 300


def test_the_linear_form_that_routers_predict_with_is_near_the_engines_own():
    timing = dynamo_timing()
    for decoding, context_tokens, chunks in [
        (20, 300_000, []),
        (50, 800_000, []),
        (0, 0, [(8_192, 0)]),
        (30, 400_000, [(8_162, 0)]),
    ]:
        linear_s = iteration_s(DYNAMO_MOCK, decoding, context_tokens, chunks)
        assert linear_s == pytest.approx(timing(decoding, context_tokens, chunks), rel=0.25)


def test_other_block_sizes_keep_the_capacity_in_tokens():
    small = ReplayEngine(block_tokens=16)
    assert small.arguments() == {"block_size": 16, "num_gpu_blocks": 65_536}
    assert small.profile.kv_capacity_tokens == ReplayEngine().profile.kv_capacity_tokens
