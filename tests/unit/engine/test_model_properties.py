"""What holds in the engine whatever is done to it and when."""

from collections import defaultdict

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.profile import LLAMA70B_TP4_H100
from tokenfleet.engine.requests import EngineEvent, EngineRequest, Finished, FirstToken

BLOCK_SIZE = 4
PROFILE = msgspec.structs.replace(
    LLAMA70B_TP4_H100,
    kv_capacity_tokens=80,
    iteration_budget_tokens=24,
    max_running_requests=5,
    max_context_tokens=1_000,
)


class Arrival(msgspec.Struct, frozen=True):
    """One request: when it comes, what it asks, and after how long its client goes away, if it does."""

    after_s: float
    tokens: tuple[int, ...]
    output_tokens: int
    cancel_after_s: float | None


arrivals = st.lists(
    st.builds(
        Arrival,
        after_s=st.floats(0, 0.3),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=60).map(tuple),
        output_tokens=st.integers(1, 60),
        cancel_after_s=st.none() | st.floats(0, 1.5),
    ),
    min_size=1,
    max_size=12,
)


def engine_request(name: str, arrival: Arrival) -> EngineRequest:
    tokens = arrival.tokens
    ends = range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE)
    return EngineRequest(
        request_id=name,
        prompt_tokens=len(tokens),
        output_tokens=arrival.output_tokens,
        block_hashes=[tokens[:end] for end in ends],
    )


def check(model: EngineModel) -> None:
    kv = model.kv
    assert 0 <= kv.used_blocks <= kv.capacity_blocks
    assert kv.private_blocks >= 0
    assert kv.private_blocks + kv.cached_blocks <= kv.capacity_blocks
    assert 0 <= kv.unreferenced_blocks <= kv.cached_blocks
    assert model.running <= PROFILE.max_running_requests


def run(plan: list[Arrival], looks_s: list[float], lookahead: int) -> tuple[list[EngineEvent], EngineModel]:
    """Runs a plan, looking at the engine at some times more, then as often as the engine says."""
    model = EngineModel(PROFILE, BLOCK_SIZE, record_kv_changes=True)
    steps: list[tuple[float, int, int, str]] = [(look, 2, 0, "look") for look in looks_s]
    now_s = 0.0
    for index, arrival in enumerate(plan):
        now_s += arrival.after_s
        steps.append((now_s, 0, index, "add"))
        if arrival.cancel_after_s is not None:
            steps.append((now_s + arrival.cancel_after_s, 1, index, "cancel"))
    events: list[EngineEvent] = []
    for time_s, _, index, what in sorted(steps):
        if what == "add":
            model.add(engine_request(str(index), plan[index]), time_s)
        elif what == "cancel":
            model.cancel(str(index), time_s)
        events += model.advance(time_s)
        check(model)
    while (following := model.next_event(lookahead)) is not None:
        events += model.advance(following.time_s)
        check(model)
    return events, model


@given(plan=arrivals)
def test_every_request_gets_all_its_tokens_or_was_cancelled_and_no_block_is_lost(plan: list[Arrival]):
    events, model = run(plan, [], 1)
    finished = {event.request_id: event.output_tokens for event in events if isinstance(event, Finished)}
    for index, arrival in enumerate(plan):
        if str(index) in finished:
            room_tokens = PROFILE.kv_capacity_tokens - len(arrival.tokens)
            assert finished[str(index)] == min(arrival.output_tokens, room_tokens)
        else:
            assert arrival.cancel_after_s is not None
    assert len(finished) + model.counters.cancelled == len(plan)
    assert model.kv.used_blocks == model.running == model.waiting == 0
    if not model.counters.cancelled:
        assert model.counters.generation_tokens == sum(finished.values())
        assert model.counters.prompt_tokens == sum(len(arrival.tokens) for arrival in plan)


@given(plan=arrivals)
def test_events_come_in_order_of_time_and_a_first_token_before_its_finish(plan: list[Arrival]):
    events, _ = run(plan, [], 1)
    times = [event.time_s for event in events]
    assert times == sorted(times)
    seen: dict[str, list[type]] = defaultdict(list)
    for event in events:
        seen[event.request_id].append(type(event))
        if isinstance(event, FirstToken):
            assert event.scheduled_s < event.time_s
    assert all(kinds in ([FirstToken], [FirstToken, Finished]) for kinds in seen.values())


@given(plan=arrivals, looks_s=st.lists(st.floats(0, 4), max_size=20), lookahead=st.integers(1, 50))
def test_the_outcome_does_not_depend_on_who_looks_and_when(
    plan: list[Arrival], looks_s: list[float], lookahead: int
):
    events, model = run(plan, [], 1)
    other_events, other_model = run(plan, looks_s, lookahead)
    assert other_events == events
    assert other_model.counters == model.counters
    assert other_model.kv.take_changes() == model.kv.take_changes()


@given(plan=arrivals)
def test_looking_far_ahead_names_the_time_of_the_next_first_token_or_finish(plan: list[Arrival]):
    model = EngineModel(PROFILE, BLOCK_SIZE)
    for index, arrival in enumerate(plan):
        model.add(engine_request(str(index), arrival), 0.0)
    while (far := model.next_event(1_000)) is not None:
        events: list[EngineEvent] = []
        while not events and (near := model.next_event()) is not None and near.time_s <= far.time_s + 1e-9:
            events = model.advance(near.time_s)
            assert near.notable == bool(events)
        if far.notable:
            assert events
            assert abs(events[0].time_s - far.time_s) < 1e-9
        else:
            assert not events
