"""Given this fleet and this request, this instance, because."""

import msgspec
import pytest
from fleets import PROFILE, state, view
from loads import decode
from unit.tokenpilot.situations import choice_for, choice_of, chosen, told

from tokenfleet.contracts.fleet import IndexQuality
from tokenfleet.load import LoadView
from tokenpilot.policy.candidates import SHOWN


def test_the_instance_without_a_backlog_is_chosen():
    load = LoadView()
    load.routed("r1", 1, "a", 8_000, 0, 0.0)
    load.routed("r2", 1, "c", 1_000, 0, 0.0)
    choice = choice_of(1_000, load)
    assert choice.instance.record.instance == "b" and choice.reason == "least_cost"
    assert not choice.queued


def test_a_cached_prefix_wins_over_an_idle_instance_when_it_saves_more_than_the_wait():
    load = LoadView()
    load.routed("r1", 1, "a", 4_000, 0, 0.0)
    assert chosen(20_000, load, {"a": 300}) == "a"
    load.routed("r2", 1, "a", 60_000, 0, 0.0)
    assert chosen(20_000, load, {"a": 300}) != "a"


def test_equal_instances_are_drawn_from_not_herded_to():
    choices = [choice_of(draw=draw) for draw in (0.0, 0.5, 0.99)]
    assert {choice.instance.record.instance for choice in choices} == {"a", "b", "c"}
    assert {choice.reason for choice in choices} == {"tie_drawn"}


def test_the_same_inputs_give_the_same_choice():
    load = LoadView()
    load.routed("r1", 1, "b", 3_000, 0, 0.0)
    assert choice_of(1_000, load, {"c": 3}, draw=0.3) == choice_of(1_000, load, {"c": 3}, draw=0.3)


def test_an_instance_that_failed_the_request_is_not_tried_again_and_says_so():
    choice = choice_of(1_000, matched={"a": 15}, excluded=("a", "never heard of"))
    assert choice.instance.record.instance != "a"
    assert told(choice)["a"].filtered == "failed_this_request_before"
    assert choice.filtered == {"failed_this_request_before": 1} and choice.considered == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_context_tokens": 1_000}, "context_too_long"),
        ({"kv_capacity_tokens": 1_000}, "exceeds_kv_capacity"),
    ],
)
def test_an_instance_too_small_for_the_prompt_is_passed_over_with_its_reason(
    changes: dict[str, int], reason: str
):
    small = view("small", profile=msgspec.structs.replace(PROFILE, **changes))
    choice = choice_of(1_000, fleet=[small, view("z")])
    assert choice.instance.record.instance == "z"
    assert told(choice)["small"].filtered == reason
    assert chosen(999, fleet=[small]) == "small", "there must be room for the prompt and one token"


def test_a_prompt_beyond_every_context_fits_nowhere():
    assert choice_for(131_072) is None


def test_an_empty_pool_has_no_choice():
    assert choice_for(fleet=[]) is None


def test_round_robin_takes_turns():
    turns = [chosen(routing="round_robin", turn=turn) for turn in range(4)]
    assert turns == ["a", "b", "c", "a"]


def test_least_requests_counts_requests_however_large():
    load = LoadView()
    for name in ("a", "b", "c"):
        load.routed(f"on-{name}", 1, name, 10, 0, 0.0)
    load.ended("on-b", 1, 0.0)
    assert chosen(1_000, load, routing="least_requests") == "b"
    load.routed("large", 1, "b", 100_000, 0, 0.0)
    load.ended("on-c", 1, 0.0)
    assert chosen(1_000, load, routing="least_requests") == "c"


def test_the_last_token_of_a_prompt_is_computed_however_much_is_cached():
    assert choice_of(640, matched={"b": 10}).reused_tokens == 639


def test_blocks_to_be_restored_are_told_apart_and_worth_less_than_those_at_hand():
    slow = msgspec.structs.replace(PROFILE, restore_s_per_token=2e-5)
    fleet = [view("near", profile=slow), view("far", profile=slow)]
    matched = {"near": 100, "far": 100}
    choice = choice_of(8_000, matched=matched, fleet=fleet, offloaded_blocks={"far": 100})
    assert choice.instance.record.instance == "near"
    assert (told(choice)["near"].offloaded_tokens, told(choice)["far"].offloaded_tokens) == (0, 6_400)


@pytest.mark.parametrize("quality", ["degraded", "approximate"])
def test_what_an_instance_is_thought_to_hold_counts_though_the_index_is_not_exact(quality: IndexQuality):
    choice = choice_of(8_000, matched={"b": 100}, quality=lambda _: quality)
    assert choice.instance.record.instance == "b"
    assert told(choice)["b"].index == quality and choice.filtered == {}


class TestWhatIsTold:
    def test_what_is_predicted_is_told_of_each_candidate(self):
        load = LoadView()
        load.routed("r1", 1, "a", 8_000, 0, 0.0)
        decode(load, "r2", "c")
        choice = choice_of(2_000, load, {"b": 10})
        candidates = told(choice)
        assert candidates["b"].reused_tokens == 640 == choice.reused_tokens
        assert (candidates["a"].backlog_s or 0) > 0
        assert (candidates["a"].pending, candidates["c"].decoding) == (1, 1)
        assert choice.candidates[0].instance == "b", "best first"
        assert choice.predicted_ttft_s == pytest.approx(candidates["b"].predicted_ttft_s, abs=1e-5)

    def test_who_queues_and_who_waits_for_kv_is_said(self):
        load = LoadView()
        load.routed("r1", 1, "a", 8_000, 0, 0.0)
        queued = choice_of(1_000, load, fleet=[view("a")])
        assert queued.queued and not queued.waits_for_kv
        full = LoadView()
        for number in range(22):
            decode(full, f"r{number}", tokens=20_000)
        assert choice_of(40_000, full, fleet=[view("a")]).waits_for_kv

    def test_how_old_telemetry_is_and_how_good_the_index(self):
        fleet = [view("a"), view("b")]
        fleet[0].state, fleet[0].heard_s = state("a", kv_usage=0.4), 2.0
        quality: dict[str, IndexQuality] = {"a": "exact"}
        choice = choice_of(fleet=fleet, wall_s=2.5, quality=quality.get)
        assert told(choice)["a"].telemetry_age_s == pytest.approx(0.5)
        assert told(choice)["a"].kv_usage == 0.4
        assert (told(choice)["a"].index, told(choice)["b"].index) == ("exact", None)

    def test_of_a_large_fleet_the_best_are_told_and_some_of_those_filtered(self):
        fleet = [view(f"i{number:02d}") for number in range(40)]
        excluded = tuple(f"i{number:02d}" for number in range(20))
        choice = choice_of(1_000, fleet=fleet, excluded=excluded, draw=0.9)
        usable = [candidate for candidate in choice.candidates if candidate.filtered is None]
        assert len(usable) == SHOWN and len(choice.candidates) == 2 * SHOWN
        assert usable[0].instance == choice.instance.record.instance
        assert choice.considered == 40 and choice.filtered == {"failed_this_request_before": 20}
