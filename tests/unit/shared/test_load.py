"""What instances are busy with, and what a request would meet there."""

import pytest
from fleets import PROFILE, state
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.engine.profile import prefill_s
from tokenfleet.load import LoadView


def ttft(load: LoadView, instance: str, tokens: int = 1_000, reused: int = 0, now_s: float = 0.0) -> float:
    return load.predict(instance, PROFILE, state(instance), tokens, reused, now_s).ttft_s


def test_on_an_idle_instance_only_the_own_prefill_counts():
    load = LoadView()
    assert ttft(load, "a", 4_096) == pytest.approx(prefill_s(PROFILE, 4_096, 0))
    assert ttft(load, "a", 4_096, reused=2_048) == pytest.approx(prefill_s(PROFILE, 2_048, 2_048))


def test_a_request_waits_for_every_prefill_ahead_of_it():
    load = LoadView()
    load.routed("r1", 1, "a", 8_000, 0, 0.0)
    load.routed("r2", 1, "a", 8_000, 0, 0.0)
    alone = ttft(LoadView(), "a")
    assert ttft(load, "a") == pytest.approx(alone + 2 * prefill_s(PROFILE, 8_000, 0))


def test_time_passing_works_off_the_head_of_the_queue_but_never_all_of_it():
    load = LoadView()
    load.routed("r1", 1, "a", 8_000, 0, 0.0)
    whole = prefill_s(PROFILE, 8_000, 0)
    alone = ttft(LoadView(), "a")
    assert ttft(load, "a", now_s=whole / 2) == pytest.approx(alone + whole / 2)
    assert ttft(load, "a", now_s=1000.0) > alone


def test_after_its_first_token_a_request_only_slows_the_steps():
    load = LoadView()
    load.routed("r1", 1, "a", 8_000, 0, 0.0)
    load.first_token("r1", 1.0)
    alone = ttft(LoadView(), "a")
    assert alone < ttft(load, "a", now_s=1.0) < alone + 0.1


def test_waiting_requests_that_nobody_told_us_about_count_too():
    load = LoadView()
    busy = load.predict("a", PROFILE, state("a", waiting=3), 1_000, 0, 0.0)
    assert busy.backlog_s > 2 * prefill_s(PROFILE, 4_096, 0)


def test_a_full_kv_cache_means_waiting_for_room():
    load = LoadView()
    for index in range(20):
        load.routed(f"r{index}", 1, "a", 20_000, 0, 0.0)
        load.first_token(f"r{index}", 0.1)
    roomy = load.predict("a", PROFILE, state("a", running=20, kv_usage=0.5), 20_000, 0, 1.0)
    full = load.predict("a", PROFILE, state("a", running=20, kv_usage=0.97), 20_000, 0, 1.0)
    assert roomy.kv_wait_s == 0.0
    assert full.kv_wait_s > 0.0
    assert full.ttft_s > roomy.ttft_s


def test_an_end_that_overtakes_its_routing_leaves_nothing_behind():
    load = LoadView()
    load.ended("r1", 1)
    load.routed("r1", 1, "a", 8_000, 0, 0.0)
    assert len(load) == 0


def test_a_second_attempt_moves_the_request():
    load = LoadView()
    load.routed("r1", 1, "a", 8_000, 0, 0.0)
    load.ended("r1", 1)
    load.routed("r1", 2, "b", 8_000, 0, 0.0)
    assert (load.outstanding("a"), load.outstanding("b")) == (0, 1)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["routed", "first_token", "ended", "drop"]),
        st.integers(0, 5),
        st.integers(1, 2),
        st.sampled_from(["a", "b"]),
    ),
    max_size=40,
)


@given(EVENTS)
def test_whatever_the_order_and_repetition_nothing_leaks(events: list[tuple[str, int, int, str]]):
    load = LoadView()
    for kind, number, attempt, instance in events:
        request_id = f"r{number}"
        if kind == "routed":
            load.routed(request_id, attempt, instance, 1_000, 64, 0.0)
        elif kind == "first_token":
            load.first_token(request_id, 1.0)
        elif kind == "ended":
            load.ended(request_id, attempt)
        else:
            load.drop_instance(instance)
        assert len(load) == load.outstanding("a") + load.outstanding("b")
        for name in ("a", "b"):
            decoding = load.instance(name).decoding.values()
            assert load.instance(name).decode_context_tokens == sum(r.context_tokens for r in decoding)
    for number in range(6):
        load.ended(f"r{number}", 2)
    assert len(load) == 0


def test_requests_whose_end_was_never_reported_are_forgotten():
    load = LoadView()
    load.routed("old", 1, "a", 1_000, 0, 0.0)
    load.routed("new", 1, "a", 1_000, 0, 50.0)
    assert load.expire(before_s=10.0) == 1
    assert "new" in load and "old" not in load
