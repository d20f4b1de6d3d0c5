"""What the engine does to single requests, with times worked out by hand from the timing form."""

import msgspec
import pytest

from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.profile import LLAMA70B_TP4_H100, decode_step_s, iteration_s, prefill_s
from tokenfleet.engine.requests import (
    ContextTooLongError,
    EngineEvent,
    EngineRequest,
    Finished,
    FirstToken,
)

PROFILE = LLAMA70B_TP4_H100
TINY = msgspec.structs.replace(
    PROFILE,
    name="tiny",
    kv_capacity_tokens=40,
    iteration_budget_tokens=16,
    max_running_requests=4,
    max_context_tokens=1_000,
)


def request(
    name: str, prompt_tokens: int, output_tokens: int, prefix: str = "", block_size: int = 16
) -> EngineRequest:
    hashes = [(prefix or name, index) for index in range(prompt_tokens // block_size)]
    return EngineRequest(
        request_id=name, prompt_tokens=prompt_tokens, output_tokens=output_tokens, block_hashes=hashes
    )


def run_dry(model: EngineModel) -> list[EngineEvent]:
    events: list[EngineEvent] = []
    while (following := model.next_event()) is not None:
        events += model.advance(following.time_s)
    return events


def engine(profile: EngineProfile = PROFILE, block_size: int = 16) -> EngineModel:
    return EngineModel(profile, block_size)


def test_on_an_empty_engine_ttft_is_the_time_of_the_prompts_chunks():
    model = engine()
    model.add(request("a", 4_096, 1), now_s=100.0)
    first, finished = run_dry(model)
    assert first == FirstToken(
        request_id="a", time_s=pytest.approx(100.0 + 0.3333596), scheduled_s=100.0, reused_tokens=0
    )
    assert finished == Finished(request_id="a", time_s=first.time_s, output_tokens=1)


def test_every_further_token_takes_one_decode_step_over_a_growing_context():
    model = engine()
    model.add(request("a", 1_000, 4), now_s=0.0)
    first, finished = run_dry(model)
    steps_s = sum(decode_step_s(PROFILE, 1, context) for context in (1_001, 1_002, 1_003))
    assert finished.time_s - first.time_s == pytest.approx(steps_s)


def test_an_arrival_joins_when_the_current_iteration_ends_and_slows_the_decodes():
    model = engine()
    model.add(request("a", 1_000, 3), now_s=0.0)
    first_a_s = prefill_s(PROFILE, 1_000, 0)
    model.add(request("b", 500, 1), now_s=first_a_s + 0.001)
    events = run_dry(model)
    alone_s = first_a_s + decode_step_s(PROFILE, 1, 1_001)
    together_s = alone_s + iteration_s(PROFILE, 1, 1_002, [(500, 0)])
    assert [type(event) for event in events] == [FirstToken, Finished, FirstToken, Finished]
    assert events[2].request_id == "b"
    assert events[2].scheduled_s == pytest.approx(alone_s)
    assert events[2].time_s == events[1].time_s == pytest.approx(together_s)


def test_prompts_are_computed_first_come_first_served_within_the_budget():
    model = engine()
    model.add(request("a", 3_000, 1), now_s=0.0)
    model.add(request("b", 3_000, 1), now_s=0.0)
    events = run_dry(model)
    chunks = [[(2_048, 0)], [(952, 2_048), (1_096, 0)], [(1_904, 1_096)]]
    ends_s = [sum(iteration_s(PROFILE, 0, 0, chunk) for chunk in chunks[:count]) for count in (1, 2, 3)]
    assert {event.request_id: event.time_s for event in events} == pytest.approx(
        {"a": ends_s[1], "b": ends_s[2]}
    )


def test_a_request_is_waiting_until_its_first_chunk_is_scheduled():
    model = engine()
    model.add(request("a", 4_096, 10), now_s=0.0)
    model.add(request("b", 100, 10), now_s=0.0)
    assert (model.running, model.waiting) == (1, 1)
    model.advance(prefill_s(PROFILE, 2_048, 0))
    assert (model.running, model.waiting) == (1, 1), "the second chunk of a takes the whole budget"
    model.advance(prefill_s(PROFILE, 4_096, 0) + 1e-9)
    assert (model.running, model.waiting) == (2, 0)


def test_a_cached_prefix_is_not_computed_again():
    model = engine()
    model.add(request("a", 1_600, 1, prefix="same"), now_s=0.0)
    run_dry(model)
    model.add(request("b", 2_000, 1, prefix="same"), now_s=10.0)
    first, _ = run_dry(model)
    assert first.reused_tokens == 1_600
    assert first.time_s == pytest.approx(10.0 + prefill_s(PROFILE, 400, 1_600))
    assert model.counters.prefix_query_tokens == 3_600
    assert model.counters.prefix_hit_tokens == 1_600


def test_of_a_fully_cached_prompt_the_last_block_is_computed():
    model = engine()
    for time_s in (0.0, 10.0):
        model.add(request("a", 1_600, 1), now_s=time_s)
        first, _ = run_dry(model)
    assert first.reused_tokens == 1_584


def test_no_more_than_the_maximum_number_of_sequences_run():
    model = engine(msgspec.structs.replace(TINY, kv_capacity_tokens=400), block_size=4)
    for name in "abcdef":
        model.add(request(name, 2, 50), now_s=0.0)
    model.advance(0.2)
    assert (model.running, model.waiting) == (4, 2)


def test_a_prompt_waits_until_all_of_it_fits_into_the_cache():
    model = engine(TINY, block_size=4)
    model.add(request("a", 24, 3), now_s=0.0)
    model.add(request("b", 24, 1), now_s=0.0)
    model.advance(prefill_s(TINY, 24, 0))
    assert (model.running, model.waiting) == (1, 1)
    events = run_dry(model)
    finished_a = next(event for event in events if isinstance(event, Finished) and event.request_id == "a")
    first_b = next(event for event in events if isinstance(event, FirstToken) and event.request_id == "b")
    assert first_b.scheduled_s == finished_a.time_s


def test_when_blocks_run_out_the_latest_request_starts_over_and_still_delivers_all_its_tokens():
    model = engine(TINY, block_size=4)
    model.add(request("a", 16, 16), now_s=0.0)
    model.add(request("b", 16, 16), now_s=0.0)
    events = run_dry(model)
    assert model.counters.preemptions == 1
    assert [(event.request_id, type(event)) for event in events] == [
        ("a", FirstToken),
        ("b", FirstToken),
        ("a", Finished),
        ("b", Finished),
    ]
    assert [event.output_tokens for event in events if isinstance(event, Finished)] == [16, 16]
    assert model.counters.generation_tokens == 32
    assert model.kv.used_blocks == 0


def test_a_request_that_lost_its_blocks_comes_before_those_that_never_ran():
    model = engine(TINY, block_size=4)
    for name, prompt_tokens in (("a", 16), ("b", 16), ("c", 24)):
        model.add(request(name, prompt_tokens, 16), now_s=0.0)
    events = run_dry(model)
    finished_b = next(event for event in events if isinstance(event, Finished) and event.request_id == "b")
    first_c = next(event for event in events if isinstance(event, FirstToken) and event.request_id == "c")
    assert model.counters.preemptions == 1
    assert first_c.scheduled_s == finished_b.time_s


def test_a_prompt_that_can_never_fit_is_refused():
    with pytest.raises(ContextTooLongError, match=r"41 tokens.*may have 40"):
        engine(TINY, block_size=4).add(request("a", 41, 1), now_s=0.0)
    with pytest.raises(ContextTooLongError):
        engine().add(request("a", PROFILE.max_context_tokens, 1), now_s=0.0)


def test_output_ends_where_the_context_does():
    model = engine(TINY, block_size=4)
    model.add(request("a", 30, 500), now_s=0.0)
    assert run_dry(model)[-1].output_tokens == 10
    assert model.counters.preemptions == 0


def test_an_id_in_use_is_refused():
    model = engine()
    model.add(request("a", 10, 10), now_s=0.0)
    with pytest.raises(ValueError, match="running already"):
        model.add(request("a", 10, 10), now_s=0.0)


def test_cancelling_returns_what_was_produced_and_frees_everything():
    model = engine()
    model.add(request("a", 100, 50), now_s=0.0)
    model.add(request("b", 100, 50), now_s=0.0)
    model.advance(0.5)
    produced = model.produced_tokens("a")
    assert 0 < produced < 50
    assert model.cancel("a", 0.5) == produced
    assert model.cancel("a", 0.5) is None
    assert [event.request_id for event in run_dry(model)] == ["b"]
    assert model.kv.used_blocks == 0
    assert model.counters.cancelled == 1


def test_time_does_not_go_back():
    model = engine()
    model.advance(5.0)
    with pytest.raises(ValueError, match="Time went back"):
        model.advance(4.0)


def test_a_profile_whose_decodes_exceed_the_budget_is_refused():
    with pytest.raises(ValueError, match="cannot decode within"):
        EngineModel(msgspec.structs.replace(PROFILE, iteration_budget_tokens=64), 16)
