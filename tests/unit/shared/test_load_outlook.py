"""Whom an arrival is expected to push over its objective, and how long it waits for KV."""

import numpy as np
import pytest
from fleets import PROFILE, state
from loads import LOOSE_TPOT_S, TIGHT_TPOT_S, at, decode, looked_at, met

from tokenfleet.load import LoadView, OutputLengths, outlook, predict

LONG = 20_000
"""A prefill of about two seconds."""


def misses(
    load: LoadView, tokens: int = LONG, now_s: float = 0.0, lengths: OutputLengths | None = None
) -> float:
    return float(looked_at(load, tokens=tokens, now_s=now_s, lengths=lengths).expected_misses[0])


def decoding(count: int = 10, **promise: float) -> LoadView:
    load = LoadView()
    for number in range(count):
        decode(load, f"r{number}", tpot_objective_s=promise.get("tpot_s", TIGHT_TPOT_S))
    return load


class TestExpectedMisses:
    def test_there_are_none_on_an_idle_instance(self):
        assert misses(LoadView()) == 0.0

    def test_there_are_none_among_requests_without_an_objective(self):
        load = LoadView()
        decode(load, "r")
        assert misses(load) == 0.0

    def test_there_are_none_where_objectives_leave_room_for_the_whole_prefill(self):
        assert misses(decoding(tpot_s=LOOSE_TPOT_S)) == 0.0

    def test_a_long_prefill_pushes_short_answers_over_a_tight_objective(self):
        assert misses(decoding()) > 2.0

    def test_requests_that_are_lost_already_are_not_lost_again(self):
        step_s = float(met(decoding()).step_s[0])
        assert misses(decoding(tpot_s=step_s / 2)) == 0.0

    def test_the_longer_the_arrival_the_more_there_are(self):
        load = decoding()
        found = [misses(load, tokens) for tokens in (100, 1_000, 4_000, 20_000, 60_000)]
        assert found == sorted(found) and found[0] < found[-1]

    def test_there_are_more_with_the_prefills_that_are_still_to_come(self):
        load, quantiles = decoding(tpot_s=0.03), OutputLengths().quantiles
        predictions = met(load, tokens=10)
        found = [
            float(outlook(load.table, predictions, np.array([0]), quantiles, share).expected_misses[0])
            for share in (0.0, 0.3, 0.7)
        ]
        assert found == sorted(found) and found[0] < 1.0 and found[-1] == pytest.approx(10.0)

    def test_there_are_never_more_than_requests(self):
        assert misses(decoding(4), tokens=120_000) <= 4.0

    def test_an_answer_about_to_end_is_less_at_risk_than_one_with_much_to_come(self):
        """The prefill can delay it by no more iterations than it has left."""

        def after(iterations: int) -> float:
            load = LoadView()
            decode(load, "r", tpot_objective_s=0.05, max_output_tokens=100)
            return misses(load, now_s=iterations * float(met(load).step_s[0]))

        assert after(98) < after(2)

    def test_an_answer_that_came_fast_so_far_has_time_in_hand_and_one_that_has_just_begun_has_not(self):
        load = LoadView()
        decode(load, "r", tpot_objective_s=2 * PROFILE.base_s, max_output_tokens=2_000)
        assert misses(load, tokens=8_000, now_s=1_900 * PROFILE.base_s) == 0.0
        assert misses(load, tokens=8_000) > 0.0

    def test_an_answer_that_is_surely_long_makes_up_for_the_delay_and_a_short_one_does_not(self):
        short, long = OutputLengths(), OutputLengths()
        for _ in range(200):
            short.learn(1_000, None, 30, None)
            long.learn(1_000, None, 2_000, None)
        load = LoadView()
        decode(load, "r", tpot_objective_s=0.04, length_row=short.row(1_000, None))
        assert misses(load, lengths=short) > misses(load, lengths=long)

    def test_requests_that_still_wait_for_their_first_token_are_at_risk_as_well(self):
        load = LoadView()
        load.routed("pending", 1, "a", 1_000, 0, 0.0, tpot_objective_s=TIGHT_TPOT_S)
        assert misses(load) > 0.0

    def test_those_that_a_prefill_already_queued_will_push_over_are_not_counted_again(self):
        load = LoadView()
        for number in range(10):
            decode(load, f"r{number}", tpot_objective_s=TIGHT_TPOT_S, max_output_tokens=50)
        assert misses(load) > 5.0
        load.routed("queued", 1, "a", LONG, 0, 0.0)
        assert misses(load) == 0.0

    def test_all_instances_looked_at_together_are_as_one_by_one(self):
        load = LoadView()
        for number, instance in enumerate("abcabcaab"):
            decode(load, f"r{number}", instance, tokens=1_000 * (number + 1), tpot_objective_s=TIGHT_TPOT_S)
        load.routed("pending", 1, "b", 5_000, 0, 0.0)
        predictions = predict(load.table, load.slots("abcd"), LONG, 0.0, 0.0, 0.3)
        together = outlook(load.table, predictions, np.arange(4), OutputLengths().quantiles)
        alone = [looked_at(load, name, LONG, now_s=0.3) for name in "abcd"]
        assert together.expected_misses.tolist() == [float(each.expected_misses[0]) for each in alone]
        assert together.kv_wait_s.tolist() == pytest.approx([float(each.kv_wait_s[0]) for each in alone])


ANSWER_TOKENS = 400


def all_as_long_as_allowed() -> OutputLengths:
    lengths = OutputLengths()
    for _ in range(1_000):
        lengths.learn(20_000, None, 2 * ANSWER_TOKENS, None)
    return lengths


LENGTHS = all_as_long_as_allowed()


def full() -> LoadView:
    """22 requests that fill the KV of one instance, each with as many tokens to come."""
    load = LoadView()
    for number in range(22):
        decode(
            load,
            f"r{number}",
            tokens=20_000,
            max_output_tokens=ANSWER_TOKENS,
            length_row=LENGTHS.row(20_000, None),
        )
    return load


def kv_wait_s(load: LoadView, tokens: int = LONG, now_s: float = 0.0) -> float:
    return float(looked_at(load, tokens=tokens, now_s=now_s, lengths=LENGTHS).kv_wait_s[0])


class TestKvWait:
    def test_there_is_none_while_the_prompt_fits(self):
        load = LoadView()
        for number in range(10):
            decode(load, f"r{number}", tokens=20_000)
        assert kv_wait_s(load) == 0.0

    def test_it_lasts_until_those_that_hold_the_kv_end(self):
        assert PROFILE.kv_capacity_tokens < 22 * 20_000 + LONG
        load = full()
        assert kv_wait_s(load) == pytest.approx(ANSWER_TOKENS * float(met(load).step_s[0]), rel=0.1)

    def test_a_short_prompt_still_fits(self):
        assert kv_wait_s(full(), tokens=1_000) == 0.0

    def test_prompts_that_wait_already_take_the_room_first(self):
        load = full()
        load.routed("first", 1, "a", 10_000, 0, 0.0)
        assert kv_wait_s(load, tokens=1_000) > 0.0

    def test_it_shrinks_as_those_that_decode_near_their_end(self):
        load = full()
        end_s = ANSWER_TOKENS * float(met(load).step_s[0])
        found = [kv_wait_s(load, now_s=share * end_s) for share in (0.0, 0.3, 0.6, 0.9)]
        assert found == sorted(found, reverse=True) and found[-1] < 0.2 * found[0]

    def test_it_is_over_once_enough_have_ended(self):
        load = full()
        load.ended("r0", 1, 1.0)
        load.ended("r1", 1, 1.0)
        assert kv_wait_s(load, now_s=1.0) == 0.0

    def test_a_longer_prompt_waits_for_more_to_end(self):
        load = LoadView()
        for number in range(22):
            decode(load, f"r{number}", tokens=20_000, max_output_tokens=20 * (number + 1))
        assert kv_wait_s(load, 120_000) > kv_wait_s(load, 20_000)

    def test_prefixes_that_running_requests_share_leave_room(self):
        load = full()
        for _ in range(30):
            load.reading(state("a", running=22, kv_usage=0.4), 0.0, 0.0)
        assert at(load).kv_per_context < 0.5
        assert kv_wait_s(load) == 0.0
