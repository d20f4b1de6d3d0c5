"""What a request would meet at an instance, and what its arrival would do to those there."""

import random
import statistics

import msgspec
import numpy as np
import pytest
from fleets import PROFILE, record, state
from hypothesis import given
from hypothesis import strategies as st
from loads import LOOSE_TPOT_S, TIGHT_TPOT_S, decode, looked_at, met, ttft_s

from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.profile import prefill_s
from tokenfleet.engine.requests import EngineRequest, FirstToken
from tokenfleet.load import LoadView, OutputLengths, outlook, predict

STEP_S = PROFILE.base_s


class TestTimeToFirstToken:
    @pytest.mark.parametrize(("tokens", "reused"), [(4_096, 0), (4_096, 2_048), (60_000, 0), (1, 0)])
    def test_on_an_idle_instance_it_is_the_own_prefill(self, tokens: int, reused: int):
        expected_s = prefill_s(PROFILE, tokens - reused, reused)
        assert ttft_s(LoadView(), tokens=tokens, reused=reused) == pytest.approx(expected_s)

    def test_it_waits_for_every_prefill_ahead(self):
        load = LoadView()
        for name in ("r1", "r2"):
            load.routed(name, 1, "a", 8_192, 0, 0.0)
        ahead_s = 2 * prefill_s(PROFILE, 8_192, 0)
        assert ttft_s(load) == pytest.approx(ttft_s(LoadView()) + ahead_s, rel=0.01)

    def test_prompts_that_fit_in_one_iteration_share_its_cost(self):
        load = LoadView()
        for number in range(8):
            load.routed(f"r{number}", 1, "a", 100, 0, 0.0)
        one_iteration_s = prefill_s(PROFILE, 8 * 100, 0)
        assert met(load, tokens=100).backlog_s[0] == pytest.approx(one_iteration_s, rel=0.02)

    def test_time_works_off_the_head_of_the_queue_but_never_all_of_it(self):
        load = LoadView()
        load.routed("r1", 1, "a", 8_000, 0, 0.0)
        whole_s = prefill_s(PROFILE, 8_000, 0)
        alone_s = ttft_s(LoadView())
        assert ttft_s(load, now_s=whole_s / 2) == pytest.approx(alone_s + whole_s / 2, rel=0.01)
        assert ttft_s(load, now_s=1_000.0) > alone_s

    def test_after_its_first_token_a_request_only_slows_the_steps(self):
        load = LoadView()
        load.routed("r1", 1, "a", 8_000, 0, 0.0)
        load.first_token("r1", 1.0)
        alone_s = ttft_s(LoadView())
        assert alone_s < ttft_s(load, now_s=1.0) < alone_s + 0.1

    def test_blocks_in_host_memory_cost_their_restoring(self):
        load = LoadView()
        load.joined(record("a", profile=msgspec.structs.replace(PROFILE, restore_s_per_token=1e-5)))
        resident = met(load, tokens=8_000, reused=6_400)
        restored = met(load, tokens=8_000, reused=6_400, offloaded=6_400)
        computed = met(load, tokens=8_000)
        assert restored.ttft_s[0] == pytest.approx(resident.ttft_s[0] + 6_400 * 1e-5)
        assert restored.ttft_s[0] < computed.ttft_s[0]

    @given(
        queued=st.lists(st.integers(1, 20_000), max_size=6),
        extra=st.integers(1, 20_000),
        reused=st.integers(0, 3_000),
        more=st.integers(0, 999),
    )
    def test_it_never_falls_with_work_pending_nor_rises_with_tokens_cached(
        self, queued: list[int], extra: int, reused: int, more: int
    ):
        load = LoadView()
        for number, tokens in enumerate(queued):
            load.routed(f"r{number}", 1, "a", tokens, 0, 0.0)
        before_s = ttft_s(load, tokens=4_000, reused=reused)
        assert ttft_s(load, tokens=4_000, reused=reused + more) <= before_s + 1e-9
        load.routed("extra", 1, "a", extra, 0, 0.0)
        assert ttft_s(load, tokens=4_000, reused=reused) >= before_s - 1e-9


def test_many_instances_at_once_get_what_each_gets_alone():
    rng, load = random.Random(3), LoadView()
    names = [f"i{number}" for number in range(12)]
    for number in range(150):
        name, tokens = rng.choice(names), rng.randint(10, 20_000)
        load.routed(f"r{number}", 1, name, tokens, tokens // 3, 0.0, tpot_objective_s=TIGHT_TPOT_S)
        if rng.random() < 0.7:
            load.first_token(f"r{number}", 0.1)
    lengths = OutputLengths()
    together = predict(load.table, load.slots(names), 9_000, 640.0, 0.0, 0.5)
    closer = outlook(load.table, together, np.arange(len(names)), lengths.quantiles)
    for position, name in enumerate(names):
        alone = met(load, name, 9_000, reused=640.0, now_s=0.5)
        assert together.ttft_s[position] == alone.ttft_s[0]
        assert together.tpot_s[position] == alone.tpot_s[0]
        near = outlook(load.table, alone, np.array([0]), lengths.quantiles)
        assert closer.expected_misses[position] == pytest.approx(near.expected_misses[0])
        assert closer.kv_wait_s[position] == pytest.approx(near.kv_wait_s[0])
    assert closer.expected_misses.max() > 0


def predicted_and_actual_s(seed: int) -> tuple[float, float]:
    """A prompt comes to an engine with some requests decoding and some queued, all of them reported at once."""
    rng, load, engine = random.Random(seed), LoadView(), EngineModel(PROFILE, 64)
    load.joined(record("a"))
    now_s = 0.0
    for number in range(rng.randint(1, 10)):
        now_s += rng.expovariate(4.0)
        tell(load, engine, now_s)
        tokens = round(rng.lognormvariate(8.0, 1.0)) + 1
        engine.add(EngineRequest(request_id=f"r{number}", prompt_tokens=tokens, output_tokens=300), now_s)
        load.routed(f"r{number}", 1, "a", tokens, 0, now_s)
    now_s += rng.expovariate(4.0)
    tell(load, engine, now_s)
    tokens = round(rng.lognormvariate(8.0, 1.0)) + 1
    predicted_s = ttft_s(load, tokens=tokens, now_s=now_s)
    engine.add(EngineRequest(request_id="new", prompt_tokens=tokens, output_tokens=300), now_s)
    events = engine.advance(now_s + 60.0)
    came_s = next(
        event.time_s for event in events if isinstance(event, FirstToken) and event.request_id == "new"
    )
    return predicted_s, came_s - now_s


def tell(load: LoadView, engine: EngineModel, now_s: float) -> None:
    for event in engine.advance(now_s):
        if isinstance(event, FirstToken):
            load.first_token(event.request_id, event.time_s)
        else:
            load.ended(event.request_id, 1, event.time_s, event.output_tokens)


def test_predictions_are_within_15_percent_of_what_an_engine_does():
    errors = [abs(predicted / actual - 1) for predicted, actual in map(predicted_and_actual_s, range(60))]
    assert statistics.median(errors) < 0.15
    assert statistics.quantiles(errors, n=10)[-1] < 0.5


class TestExpectedMisses:
    def test_a_long_prompt_pushes_short_answers_over_their_objective_and_a_short_prompt_does_not(self):
        load = LoadView()
        for number in range(5):
            decode(load, f"r{number}", tpot_objective_s=TIGHT_TPOT_S, max_output_tokens=20)
        assert looked_at(load, tokens=60_000).expected_misses[0] == pytest.approx(5.0)
        assert looked_at(load, tokens=10).expected_misses[0] == 0.0

    def test_they_never_fall_with_the_length_of_the_prompt(self):
        load = LoadView()
        for number in range(20):
            decode(load, f"r{number}", tpot_objective_s=TIGHT_TPOT_S + number * 0.01)
        misses = [looked_at(load, tokens=tokens).expected_misses[0] for tokens in (10, 2_000, 8_000, 40_000)]
        assert misses == sorted(misses) and misses[0] < misses[-1]

    @pytest.mark.parametrize("tpot_objective_s", [None, LOOSE_TPOT_S])
    def test_nothing_is_missed_where_nothing_or_little_was_promised(self, tpot_objective_s: float | None):
        load = LoadView()
        decode(load, "r", tpot_objective_s=tpot_objective_s, max_output_tokens=20)
        assert looked_at(load, tokens=60_000).expected_misses[0] == 0.0

    def test_what_is_lost_already_is_not_missed_anew(self):
        load = LoadView()
        decode(load, "r", tpot_objective_s=STEP_S / 2, max_output_tokens=20)
        assert looked_at(load, tokens=60_000).expected_misses[0] == 0.0

    def test_an_answer_that_came_fast_so_far_has_time_in_hand_and_one_that_has_just_begun_has_not(self):
        load = LoadView()
        decode(load, "r", tpot_objective_s=2 * STEP_S, max_output_tokens=2_000)
        now_s = 1_900 * STEP_S
        assert looked_at(load, tokens=8_000, now_s=now_s).expected_misses[0] == 0.0
        assert looked_at(load, tokens=8_000).expected_misses[0] > 0.0

    def test_an_empty_instance_has_nobody_to_harm(self):
        assert looked_at(LoadView(), tokens=60_000).expected_misses[0] == 0.0


class TestWaitForKv:
    def test_there_is_none_while_there_is_room_and_some_when_there_is_not(self):
        load = LoadView()
        for number in range(20):
            decode(load, f"r{number}", tokens=20_000)
        assert looked_at(load, tokens=20_000).kv_wait_s[0] == 0.0
        decode(load, "r20", tokens=40_000)
        assert looked_at(load, tokens=20_000).kv_wait_s[0] > 0.0

    def test_the_more_is_short_the_longer_it_is(self):
        load = LoadView()
        for number in range(22):
            decode(load, f"r{number}", tokens=20_000)
        waits_s = [looked_at(load, tokens=tokens).kv_wait_s[0] for tokens in (30_000, 120_000, 200_000)]
        assert waits_s == sorted(waits_s) and len(set(waits_s)) == 3

    def test_answers_that_end_sooner_free_their_room_sooner(self):
        waits_s: list[float] = []
        for most in (5, 2_000):
            load = LoadView()
            for number in range(22):
                decode(load, f"r{number}", tokens=20_000, max_output_tokens=most)
            waits_s.append(looked_at(load, tokens=30_000).kv_wait_s[0])
        assert 0 < waits_s[0] < waits_s[1]

    def test_running_requests_that_share_their_prefix_leave_more_room(self):
        load = LoadView()
        for number in range(22):
            decode(load, f"r{number}", tokens=20_000)
        apart_s = looked_at(load, tokens=30_000).kv_wait_s[0]
        for _ in range(20):
            load.reading(state("a", running=22, kv_usage=0.4), 0.0, 0.0)
        assert looked_at(load, tokens=30_000).kv_wait_s[0] == 0.0 < apart_s
