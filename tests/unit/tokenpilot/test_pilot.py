"""One pool's pilot from decision to end: what it counts, learns, forgets and hands over."""

import random

import msgspec
import pytest
from fleets import request, view
from loads import at

from tokenfleet.contracts.latency import PoolLatency
from tokenfleet.contracts.requests import Objective
from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.profile import LLAMA70B_TP4_H100
from tokenfleet.engine.requests import EngineRequest, FirstToken
from tokenpilot.policy.pilot import Decision, Pilot

FLEET = [view("a"), view("b")]
OBJECTIVE = Objective(ttft_s=4.0, tpot_s=0.1)


def pilot() -> Pilot:
    pilot = Pilot()
    for each in FLEET:
        pilot.joined(each.record)
    return pilot


def decide(
    pilot: Pilot,
    request_id: str,
    now_s: float = 0.0,
    *,
    attempt: int = 1,
    tokens: int = 2_000,
    blocks: tuple[int, ...] = (),
    draw: float = 0.0,
    excluded: tuple[str, ...] = (),
) -> Decision:
    spec = request(tokens, excluded_instances=excluded)
    decision = pilot.decide(request_id, attempt, spec, OBJECTIVE, blocks, FLEET, {}, now_s, draw=draw)
    assert decision is not None
    return decision


def in_flight(pilot: Pilot) -> list[int]:
    return [pilot.load.outstanding(name) for name in ("a", "b")]


def through_engines(pilot: Pilot, requests: int, speed: float = 1.0) -> list[Decision]:
    """Send requests to engines that take `speed` times what their profile says, and tell what happens there."""
    rng = random.Random(5)
    slow = msgspec.structs.replace(
        LLAMA70B_TP4_H100,
        base_s=speed * LLAMA70B_TP4_H100.base_s,
        decode_s_per_request=speed * LLAMA70B_TP4_H100.decode_s_per_request,
        decode_s_per_context_token=speed * LLAMA70B_TP4_H100.decode_s_per_context_token,
        prefill_s_per_token=speed * LLAMA70B_TP4_H100.prefill_s_per_token,
        attention_s_per_token_pair=speed * LLAMA70B_TP4_H100.attention_s_per_token_pair,
    )
    engines = {name: EngineModel(slow, 64) for name in ("a", "b")}
    decisions: list[Decision] = []

    def tell(until_s: float) -> None:
        events = [event for engine in engines.values() for event in engine.advance(until_s)]
        for event in sorted(events, key=lambda event: event.time_s):
            if isinstance(event, FirstToken):
                pilot.first_token(event.request_id, event.time_s)
            else:
                tokens = event.output_tokens
                pilot.ended(event.request_id, 1, event.time_s, completed=True, output_tokens=tokens)

    now_s = 0.0
    for number in range(requests):
        now_s += rng.expovariate(2.0)
        tell(now_s)
        tokens = round(rng.lognormvariate(8.0, 0.8)) + 1
        decision = decide(pilot, f"r{number}", now_s, tokens=tokens, blocks=(number,), draw=rng.random())
        decisions.append(decision)
        asked = EngineRequest(
            request_id=f"r{number}", prompt_tokens=tokens, output_tokens=rng.randint(2, 200)
        )
        engines[decision.choice.instance.record.instance].add(asked, now_s)
    tell(now_s + 300.0)
    return decisions


class TestARequestsLife:
    def test_a_request_counts_where_it_was_sent_from_the_decision_on(self):
        it = pilot()
        first, second = decide(it, "r1", tokens=30_000), decide(it, "r2")
        assert first.choice.instance is not second.choice.instance
        assert in_flight(it) == [1, 1]

    @pytest.mark.parametrize("way", ["completed", "cancelled", "failed", "silent", "instance left"])
    @pytest.mark.parametrize("had_first_token", [False, True])
    def test_however_it_ends_nothing_is_left(self, way: str, had_first_token: bool):
        it = pilot()
        decide(it, "r")
        if had_first_token:
            it.first_token("r", 1.0)
        if way == "silent":
            assert it.expire(before_s=0.5, now_s=2.0) == 1
        elif way == "instance left":
            it.left("a")
            it.joined(FLEET[0].record)
            it.ended("r", 1, 2.0, completed=False, output_tokens=0)
        else:
            if way == "failed":
                it.attempt_failed("r", 1, 1.5)
            for _ in range(2):
                it.ended("r", 1, 2.0, completed=way == "completed", output_tokens=10)
        assert in_flight(it) == [0, 0] and "r" not in it.load
        assert (at(it.load, "a").decoding, at(it.load, "a").pending_tokens) == (0, 0)

    def test_a_second_attempt_goes_elsewhere_and_is_the_only_one_counted(self):
        it = pilot()
        decide(it, "r")
        it.attempt_failed("r", 1, 0.5)
        decide(it, "r", 0.6, attempt=2, excluded=("a",))
        assert in_flight(it) == [0, 1]
        it.ended("r", 2, 3.0, completed=True, output_tokens=10)
        assert in_flight(it) == [0, 0]

    @pytest.mark.parametrize("lost", ["its end was never reported", "its instance left"])
    def test_what_was_to_be_learned_from_a_request_goes_with_it(self, lost: str):
        it = pilot()
        decide(it, "r", blocks=(1, 2, 3))
        if lost == "its instance left":
            it.left("a")
        it.expire(before_s=0.5, now_s=2.0)
        it.ended("r", 1, 3.0, completed=True, output_tokens=123)
        assert decide(it, "r2", 6.0, blocks=(1, 2, 3, 4)).previous_output_tokens is None

    def test_when_no_instance_can_take_it_nothing_is_counted(self):
        it = pilot()
        asked = request(1_000_000)
        assert it.decide("r", 1, asked, OBJECTIVE, (), FLEET, {}, 0.0) is None
        assert len(it.load) == 0 and it.demand.interval_s == pilot().demand.interval_s

    def test_an_instance_that_joins_later_is_used_once_it_is_ready(self):
        it = pilot()
        decide(it, "r1", tokens=30_000)
        decide(it, "r2", tokens=30_000)
        new = view("c")
        it.joined(new.record)
        decision = it.decide("r3", 1, request(1_000), OBJECTIVE, (), [*FLEET, new], {}, 0.0)
        assert decision is not None and decision.choice.instance is new


class TestLearning:
    def test_engines_slower_than_their_profile_are_found_out_and_predictions_become_right(self):
        it = pilot()
        through_engines(it, 150, speed=1.25)
        for factors in it.speeds.all().values():
            assert factors.prefill == pytest.approx(1.25, rel=0.08)
            assert factors.step == pytest.approx(1.25, rel=0.08)
        error = it.calibration.absolute_error("idle")
        assert error is not None and error[0] < 0.1
        assert it.experienced

    def test_the_length_of_a_turn_is_expected_from_the_turn_before(self):
        it = pilot()
        decide(it, "r1", blocks=(1, 2, 3))
        it.ended("r1", 1, 5.0, completed=True, output_tokens=123)
        assert decide(it, "r2", 6.0, blocks=(1, 2, 3, 4)).previous_output_tokens == 123

    def test_an_answer_that_was_broken_off_teaches_nothing(self):
        it = pilot()
        decide(it, "r1", blocks=(1, 2, 3))
        it.first_token("r1", 1.0)
        lessons = it.lessons
        it.ended("r1", 1, 5.0, completed=False, output_tokens=123)
        assert decide(it, "r2", 6.0, blocks=(1, 2, 3, 4)).previous_output_tokens is None
        assert it.lessons == lessons

    def test_a_standby_learns_lengths_of_what_another_replica_decided(self):
        standby = pilot()
        standby.noted("r1", 1, 2_000, 3)
        standby.routed(
            "r1",
            1,
            "a",
            2_000,
            0,
            0.0,
            objective=OBJECTIVE,
            previous_output_tokens=None,
            max_output_tokens=0,
            streamed=True,
        )
        assert in_flight(standby) == [1, 0]
        standby.ended("r1", 1, 5.0, completed=True, output_tokens=123)
        assert in_flight(standby) == [0, 0]
        assert decide(standby, "r2", 6.0, blocks=(1, 2, 3, 4)).previous_output_tokens == 123


class TestHandingOver:
    def test_what_was_learned_survives_a_restart_through_json(self):
        it, successor = pilot(), pilot()
        through_engines(it, 100, speed=1.25)
        learned = it.learned("pool", "site", 7)
        handed = msgspec.json.decode(msgspec.json.encode(learned), type=PoolLatency)
        assert handed == learned
        successor.restore(handed)
        assert successor.learned("pool", "site", 7) == learned
        for name in ("a", "b"):
            factors = (at(successor.load, name).prefill_factor, at(successor.load, name).step_factor)
            assert factors == (learned.factors[name].prefill, learned.factors[name].step)

    def test_restoring_before_instances_are_known_gives_them_their_factors_when_they_join(self):
        it, successor = pilot(), Pilot()
        through_engines(it, 100, speed=1.25)
        learned = it.learned("pool", "site", 7)
        successor.restore(learned)
        successor.joined(FLEET[0].record)
        assert at(successor.load, "a").prefill_factor == learned.factors["a"].prefill > 1.1


def test_the_same_happenings_give_the_same_decisions():
    assert through_engines(pilot(), 60) == through_engines(pilot(), 60)
