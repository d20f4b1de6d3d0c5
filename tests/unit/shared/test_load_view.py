"""What the load view makes of what happens to requests, and of telemetry."""

import msgspec
import pytest
from fleets import PROFILE, record, state
from loads import at, decode, met, ttft_s

from tokenfleet.engine.profile import decode_step_s
from tokenfleet.load import LoadView


def outstanding(load: LoadView, *instances: str) -> list[int]:
    return [load.outstanding(instance) for instance in instances]


class TestEachFactCountsOnce:
    def test_a_routing_told_twice_is_one_request(self):
        load = LoadView()
        for _ in range(2):
            load.routed("r", 1, "a", 1_000, 64, 0.0)
        assert outstanding(load, "a") == [1] and at(load).pending_tokens == 936

    def test_a_first_token_told_twice_is_one_decoding_request(self):
        load = LoadView()
        load.routed("r", 1, "a", 1_000, 64, 0.0)
        assert load.first_token("r", 1.0) is not None
        assert load.first_token("r", 5.0) is None, "there is nothing to learn from hearing it again"
        assert (at(load).pending, at(load).decoding) == (0, 1)

    def test_an_end_told_twice_takes_nothing_from_others(self):
        load = LoadView()
        decode(load, "stays")
        decode(load, "ends")
        for _ in range(2):
            load.ended("ends", 1, 1.0)
        assert outstanding(load, "a") == [1] and at(load).decoding == 1


class TestFactsInTheWrongOrder:
    def test_an_end_that_overtakes_its_routing_leaves_nothing_behind(self):
        load = LoadView()
        load.ended("r", 1, 0.0)
        load.routed("r", 1, "a", 8_000, 0, 0.0)
        assert len(load) == 0 and "r" not in load

    def test_a_first_token_that_overtakes_its_routing_is_no_request(self):
        load = LoadView()
        assert load.first_token("r", 0.0) is None
        load.routed("r", 1, "a", 8_000, 0, 0.1)
        assert outstanding(load, "a") == [1]
        load.ended("r", 1, 1.0)
        assert len(load) == 0 and at(load).pending_tokens == 0

    def test_a_routing_of_an_earlier_attempt_that_comes_late_changes_nothing(self):
        load = LoadView()
        load.routed("r", 2, "b", 8_000, 0, 0.0)
        load.routed("r", 1, "a", 8_000, 0, 0.1)
        assert outstanding(load, "a", "b") == [0, 1]

    def test_an_end_of_an_earlier_attempt_that_comes_late_leaves_the_later_one_running(self):
        load = LoadView()
        load.routed("r", 2, "b", 8_000, 0, 0.0)
        load.ended("r", 1, 0.1)
        assert "r" in load and outstanding(load, "b") == [1]


class TestAttempts:
    def test_a_later_attempt_moves_the_request_though_the_end_of_the_earlier_was_not_told(self):
        load = LoadView()
        load.routed("r", 1, "a", 8_000, 0, 0.0)
        load.routed("r", 2, "b", 8_000, 0, 1.0)
        assert outstanding(load, "a", "b") == [0, 1] and len(load) == 1

    def test_after_a_failed_attempt_the_next_one_counts(self):
        load = LoadView()
        load.routed("r", 1, "a", 8_000, 0, 0.0)
        load.ended("r", 1, 0.5)
        load.routed("r", 2, "b", 8_000, 0, 1.0)
        assert outstanding(load, "a", "b") == [0, 1]


class TestCancelling:
    def test_a_cancelled_prompt_amid_the_queue_lets_those_behind_it_run_earlier(self):
        load, without = LoadView(), LoadView()
        for name, tokens in (("first", 8_000), ("cancelled", 30_000), ("behind", 4_000)):
            load.routed(name, 1, "a", tokens, 0, 0.0)
            if name != "cancelled":
                without.routed(name, 1, "a", tokens, 0, 0.0)
        assert ttft_s(load) > ttft_s(without)
        load.ended("cancelled", 1, 0.0)
        assert ttft_s(load) == pytest.approx(ttft_s(without))

    def test_what_runs_after_a_request_is_still_known_once_one_ahead_of_it_was_cancelled(self):
        load = LoadView()
        for name, tokens in (("first", 8_000), ("cancelled", 30_000), ("behind", 4_000)):
            load.routed(name, 1, "a", tokens, 0, 0.0)
        load.ended("cancelled", 1, 0.0)
        load.first_token("first", 1.0)
        load.first_token("behind", 1.5)
        load.routed("new", 1, "a", 10_000, 0, 1.5)
        requests, there = load.table.requests(load.slots(["a"]))
        behind_s = (at(load).enqueued_compute_s - requests.compute_through_s)[there]
        new_s = at(load).pending_compute_s
        assert sorted(behind_s) == pytest.approx([0.0, new_s, new_s + behind_first_s(4_000)], abs=1e-9)

    def test_a_cancelled_head_gives_its_turn_to_the_next_from_now_on(self):
        load = LoadView()
        load.routed("head", 1, "a", 30_000, 0, 0.0)
        load.routed("next", 1, "a", 8_000, 0, 0.0)
        load.ended("head", 1, 2.0)
        alone = LoadView()
        alone.routed("next", 1, "a", 8_000, 0, 2.0)
        assert ttft_s(load, now_s=2.0) == pytest.approx(ttft_s(alone, now_s=2.0))


def behind_first_s(tokens: int) -> float:
    return tokens * (PROFILE.prefill_s_per_token + PROFILE.attention_s_per_token_pair * tokens / 2)


class TestInstancesComeAndGo:
    def test_dropping_an_instance_drops_what_ran_there(self):
        load = LoadView()
        load.routed("r1", 1, "a", 8_000, 0, 0.0)
        decode(load, "r2")
        load.routed("r3", 1, "b", 8_000, 0, 0.0)
        load.drop_instance("a")
        assert len(load) == 1 and "r3" in load

    def test_under_the_same_name_the_new_process_begins_idle_and_old_ends_do_not_touch_it(self):
        load = LoadView()
        load.routed("old", 1, "a", 30_000, 0, 0.0)
        load.drop_instance("a")
        load.joined(record("a", generation=2))
        assert ttft_s(load) == ttft_s(LoadView())
        load.routed("new", 1, "a", 1_000, 0, 1.0)
        load.first_token("old", 1.0)
        load.ended("old", 1, 1.0)
        assert outstanding(load, "a") == [1] and at(load).pending == 1

    def test_an_instance_that_takes_over_the_place_of_another_knows_nothing_of_its_requests(self):
        load = LoadView()
        decode(load, "r", "a")
        load.drop_instance("a")
        load.joined(record("b"))
        assert at(load, "b").decoding == 0
        assert not load.table.requests(load.slots(["b"]))[1].any()

    def test_many_instances_with_many_requests_each_keep_apart(self):
        load = LoadView()
        for instance in range(40):
            for number in range(instance):
                load.routed(f"{instance}.{number}", 1, f"i{instance}", 100 + number, 0, 0.0)
        names = [f"i{instance}" for instance in range(40)]
        assert load.table.instances(load.slots(names)).pending.tolist() == list(range(40))
        assert load.table.requests(load.slots(names))[1].sum(axis=1).tolist() == list(range(40))

    def test_a_new_profile_holds_from_the_moment_it_is_registered(self):
        load = LoadView()
        before_s = ttft_s(load)
        slow = msgspec.structs.replace(PROFILE, prefill_s_per_token=2 * PROFILE.prefill_s_per_token)
        load.joined(record("a", profile=slow))
        assert ttft_s(load) > 1.5 * before_s

    def test_learned_factors_stretch_prefill_and_step(self):
        load = LoadView()
        decode(load, "r")
        plain = met(load)
        load.set_factors("a", 2.0, 3.0)
        factored = met(load)
        assert factored.step_s == pytest.approx(3 * plain.step_s)
        assert factored.own_compute_s == pytest.approx(2 * plain.own_compute_s)


class TestDecodingGoesOnBetweenEvents:
    def test_an_iteration_is_a_token_of_each_decoding_request_and_context_grows_by_it(self):
        load = LoadView()
        decode(load, "r1", tokens=1_000)
        decode(load, "r2", tokens=2_000)
        step_s = decode_step_s(PROFILE, 2, 3_000)
        decode(load, "r3", tokens=500, now_s=100 * step_s)
        assert at(load).iterations == pytest.approx(100, rel=0.01)
        assert at(load).context_tokens == pytest.approx(3_000 + 2 * 100 + 500, rel=0.01)

    def test_an_idle_engine_does_not_iterate(self):
        load = LoadView()
        decode(load, "r1")
        load.ended("r1", 1, 1.0)
        iterations = at(load).iterations
        decode(load, "r2", now_s=50.0)
        assert at(load).iterations == iterations

    def test_an_ended_request_takes_its_answer_out_of_the_context(self):
        load = LoadView()
        decode(load, "short", tokens=1_000)
        decode(load, "long", tokens=5_000)
        load.ended("short", 1, 2.0)
        assert at(load).context_tokens == pytest.approx(5_000 + at(load).iterations)

    def test_time_that_seems_to_go_back_changes_nothing(self):
        load = LoadView()
        decode(load, "r", now_s=10.0)
        decode(load, "s", now_s=9.0)
        assert at(load).iterations == 0 and at(load).time_s == 10.0


class TestObservations:
    def test_a_first_token_tells_how_long_its_prefill_took_from_when_it_could_begin(self):
        load = LoadView()
        load.routed("head", 1, "a", 8_000, 0, 0.0)
        load.routed("next", 1, "a", 4_000, 1_000, 0.2)
        load.first_token("head", 1.0)
        observation = load.first_token("next", 1.5)
        assert observation is not None
        assert (observation.instance, observation.kind) == ("a", "prefill")
        assert observation.measured_s == pytest.approx(0.5), (
            "not since it was routed: the head was in the way"
        )
        own_s = 3_000 * (PROFILE.prefill_s_per_token + PROFILE.attention_s_per_token_pair * 2_500)
        assert observation.prefill_s == pytest.approx(own_s)

    def test_a_complete_answer_tells_how_long_its_tokens_took_on_top_of_prefills_beside_it(self):
        load = LoadView()
        decode(load, "r", tokens=1_000)
        step_s = decode_step_s(PROFILE, 1, 1_000)
        observation = load.ended("r", 1, 99 * step_s, output_tokens=100)
        assert observation is not None and observation.kind == "decode"
        assert observation.step_s == pytest.approx(99 * step_s, rel=0.01) and observation.prefill_s == 0.0

    @pytest.mark.parametrize("output_tokens", [None, 0, 1])
    def test_nothing_is_learned_from_an_answer_that_is_not_complete_or_has_no_steps(self, output_tokens):
        load = LoadView()
        decode(load, "r")
        assert load.ended("r", 1, 1.0, output_tokens) is None


class TestAnswersThatAreNotStreamed:
    """Nobody tells their first token."""

    def test_one_decodes_once_its_prefill_must_be_done(self):
        load = LoadView()
        load.routed("whole", 1, "a", 8_000, 0, 0.0, streamed=False)
        own_s = ttft_s(LoadView(), tokens=8_000)
        load.reading(state("a"), 0.9 * own_s, 0.9 * own_s)
        assert (at(load).pending, at(load).decoding) == (1, 0)
        load.reading(state("a"), 1.1 * own_s, 1.1 * own_s)
        assert (at(load).pending, at(load).decoding) == (0, 1)
        requests, there = load.table.requests(load.slots(["a"]))
        assert requests.first_token_s[there].tolist() == pytest.approx([own_s], rel=0.01)

    def test_a_first_token_behind_it_says_that_its_prefill_is_done(self):
        load = LoadView()
        load.routed("whole", 1, "a", 8_000, 0, 0.0, streamed=False)
        load.routed("next", 1, "a", 1_000, 0, 0.0)
        load.first_token("next", 0.1)
        assert (at(load).pending, at(load).decoding) == (0, 2)

    def test_nothing_is_learned_of_a_prefill_that_began_when_nobody_knows(self):
        load = LoadView()
        load.routed("whole", 1, "a", 8_000, 0, 0.0, streamed=False)
        load.routed("next", 1, "a", 1_000, 0, 0.0)
        load.routed("last", 1, "a", 1_000, 0, 0.0)
        assert load.first_token("next", 1.0) is None
        assert load.first_token("last", 1.2) is not None, "it began with the first token before it"

    def test_on_an_engine_that_was_idle_since_it_is_known_when_the_next_began(self):
        load = LoadView()
        load.routed("whole", 1, "a", 1_000, 0, 0.0, streamed=False)
        assert load.ended("whole", 1, 5.0, output_tokens=100) is not None, "its steps teach"
        load.routed("next", 1, "a", 1_000, 0, 6.0)
        assert load.first_token("next", 6.2) is not None

    def test_one_that_waits_for_kv_does_not_decode(self):
        load = LoadView()
        load.routed("whole", 1, "a", 1_000, 0, 0.0, streamed=False)
        load.reading(state("a", waiting=1, running=1, kv_usage=0.9), 0.01, 0.01)
        load.reading(state("a", waiting=1, running=1, kv_usage=0.9), 60.0, 60.0)
        assert at(load).pending == 1

    def test_one_that_ends_before_it_was_taken_to_decode_leaves_nothing_behind(self):
        load = LoadView()
        load.routed("whole", 1, "a", 100_000, 0, 0.0, streamed=False)
        load.ended("whole", 1, 0.1, output_tokens=1)
        assert (at(load).pending, at(load).decoding, at(load).pending_compute_s) == (0, 0, 0.0)


class TestRequestsWithoutAnEnd:
    def test_they_are_forgotten_after_a_while(self):
        load = LoadView()
        load.routed("old", 1, "a", 1_000, 0, 0.0)
        load.routed("new", 1, "a", 1_000, 0, 50.0)
        assert load.expire(before_s=10.0, now_s=60.0) == 1
        assert "new" in load and "old" not in load


class TestTelemetry:
    def test_requests_nobody_told_of_count(self):
        load = LoadView()
        decode(load, "known")
        load.reading(state("a", waiting=3, running=5), 0.0, 0.0)
        assert (at(load).unknown_waiting, at(load).unknown_decoding) == (3, 4)
        assert met(load).backlog_s > 3 * 4_096 * PROFILE.prefill_s_per_token
        assert met(load).step_s > 5 * PROFILE.decode_s_per_request + PROFILE.base_s

    def test_and_are_believed_less_the_older_the_reading_is(self):
        load = LoadView()
        load.reading(state("a", waiting=3, running=5), 0.0, 0.0)
        waits = [ttft_s(load, now_s=now_s) for now_s in (0.0, 4.0, 8.0, 20.0)]
        assert waits == sorted(waits, reverse=True) and len(set(waits)) == 4
        assert waits[-1] == ttft_s(LoadView())

    def test_a_request_that_is_both_known_and_in_the_reading_counts_once(self):
        load = LoadView()
        decode(load, "decoding")
        load.routed("pending", 1, "a", 8_000, 0, 0.0)
        load.routed("waiting", 1, "a", 8_000, 0, 0.0)
        before_s = ttft_s(load, now_s=0.1)
        load.reading(state("a", waiting=1, running=2), 0.1, 0.1)
        assert ttft_s(load, now_s=0.1) == pytest.approx(before_s, rel=0.02)

    def test_a_reading_older_than_a_routing_does_not_miss_it(self):
        load = LoadView()
        load.routed("new", 1, "a", 8_000, 0, 1.0)
        load.reading(state("a"), 0.5, 1.1)
        assert at(load).pending == 1 and at(load).unknown_waiting == 0

    def test_a_reading_older_than_an_end_does_not_count_the_ended_as_unknown(self):
        load = LoadView()
        decode(load, "ended")
        load.ended("ended", 1, 1.0)
        load.reading(state("a", running=1), 0.9, 1.1)
        assert at(load).unknown_decoding == 0

    def test_an_engine_that_cannot_be_reached_has_said_nothing(self):
        load = LoadView()
        load.reading(state("a", waiting=3, running=5), 0.0, 0.0)
        load.reading(state("a", reachable=False, waiting=None, running=None), 0.1, 0.1)
        assert at(load).unknown_waiting == 3

    @pytest.mark.parametrize("missing", ["waiting", "running"])
    def test_a_missing_count_is_unknown_and_not_zero(self, missing):
        load = blocked()
        load.reading(state("a", **{"waiting": 1, "running": 20, "kv_usage": 0.99, missing: None}), 1.0, 1.0)
        assert at(load).blocked, "a count of zero would say that the head is running"
        assert at(load).pending == 1

    def test_a_missing_kv_usage_is_unknown_and_not_zero(self):
        load = blocked()
        shared = at(load).kv_per_context
        load.reading(state("a", waiting=1, running=20, kv_usage=None), 1.0, 1.0)
        assert at(load).blocked and at(load).kv_per_context == shared


def blocked() -> LoadView:
    """20 requests fill the KV, and one waits for room."""
    load = LoadView()
    for number in range(20):
        decode(load, f"r{number}", tokens=22_000)
    load.routed("head", 1, "a", 20_000, 0, 0.0)
    load.reading(state("a", waiting=1, running=20, kv_usage=0.98), 0.5, 0.5)
    return load


class TestABlockedHead:
    def test_does_not_progress_while_it_waits_for_kv(self):
        load = blocked()
        assert at(load).blocked
        assert met(load, now_s=0.6).backlog_s == pytest.approx(met(load, now_s=3.0).backlog_s, rel=0.02)

    def test_progresses_again_once_telemetry_says_that_it_runs(self):
        load = blocked()
        load.reading(state("a", waiting=0, running=21, kv_usage=0.98), 1.0, 1.0)
        assert not at(load).blocked
        assert met(load, now_s=1.5).backlog_s < met(load, now_s=1.0).backlog_s - 0.4

    def test_does_not_slow_down_those_that_decode(self):
        load = blocked()
        assert at(load).iterations_per_s == pytest.approx(
            1 / decode_step_s(PROFILE, 20, at(load).context_tokens), rel=0.01
        )

    def test_with_kv_to_spare_a_waiting_head_is_only_between_two_iterations(self):
        load = LoadView()
        load.routed("head", 1, "a", 20_000, 0, 0.0)
        load.reading(state("a", waiting=1, running=0, kv_usage=0.1), 0.01, 0.01)
        assert not at(load).blocked


class TestSharedPrefixes:
    def test_kv_that_running_requests_share_is_learned_from_how_little_is_in_use(self):
        load = LoadView()
        for number in range(10):
            decode(load, f"r{number}", tokens=20_000)
        for _ in range(20):
            load.reading(state("a", running=10, kv_usage=100_000 / PROFILE.kv_capacity_tokens), 0.0, 0.0)
        assert at(load).kv_per_context == pytest.approx(0.5, rel=0.05)
