"""Given this fleet and this request, this instance, because."""

from fleets import request, view

from tokenfleet.load import LoadView
from tokenpilot.policy.choose import Choice, choose

FLEET = [view("a"), view("b"), view("c")]


def chosen(choice: Choice | None) -> str:
    assert choice is not None
    return choice.instance.record.instance


def test_the_instance_without_a_backlog_is_chosen():
    load = LoadView()
    load.routed("r1", 1, "a", 8_000, 0, 0.0)
    load.routed("r2", 1, "c", 1_000, 0, 0.0)
    choice = choose(request(), FLEET, {}, load, 0.0)
    assert chosen(choice) == "b"
    assert choice is not None and choice.reason == "lowest_predicted_ttft"


def test_a_cached_prefix_wins_over_an_idle_instance_when_it_saves_more_than_the_wait():
    load = LoadView()
    load.routed("r1", 1, "a", 4_000, 0, 0.0)
    long_prompt = request(20_000)
    assert chosen(choose(long_prompt, FLEET, {"a": 300}, load, 0.0)) == "a"
    load.routed("r2", 1, "a", 40_000, 0, 0.0)
    assert chosen(choose(long_prompt, FLEET, {"a": 300}, load, 0.0)) != "a"


def test_equal_instances_are_drawn_from_not_herded_to():
    picks = {chosen(choose(request(), FLEET, {}, LoadView(), 0.0, draw=draw)) for draw in (0.0, 0.5, 0.99)}
    assert picks == {"a", "b", "c"}


def test_the_same_inputs_give_the_same_choice():
    load = LoadView()
    load.routed("r1", 1, "b", 3_000, 0, 0.0)
    first = choose(request(), FLEET, {"c": 3}, load, 1.0, draw=0.3)
    assert first == choose(request(), FLEET, {"c": 3}, load, 1.0, draw=0.3)


def test_an_instance_that_failed_the_request_is_not_tried_again_and_says_so():
    choice = choose(request(excluded_instances=("a",)), FLEET, {"a": 15}, LoadView(), 0.0)
    assert chosen(choice) != "a"
    assert choice is not None
    reasons = {candidate.instance: candidate.filtered for candidate in choice.candidates}
    assert reasons["a"] == "failed_this_request_before"


def test_a_prompt_beyond_every_context_fits_nowhere():
    assert choose(request(131_072), FLEET, {}, LoadView(), 0.0) is None


def test_an_empty_pool_has_no_choice():
    assert choose(request(), [], {}, LoadView(), 0.0) is None


def test_round_robin_takes_turns_and_least_requests_counts():
    load = LoadView()
    turns = [chosen(choose(request(), FLEET, {}, load, 0.0, routing="round_robin", turn=i)) for i in range(4)]
    assert turns == ["a", "b", "c", "a"]
    load.routed("r1", 1, "a", 10, 0, 0.0)
    load.routed("r2", 1, "b", 100_000, 0, 0.0)
    load.routed("r3", 1, "c", 10, 0, 0.0)
    load.ended("r2", 1)
    assert chosen(choose(request(), FLEET, {}, load, 0.0, routing="least_requests")) == "b"


def test_what_is_predicted_is_explained_per_candidate():
    load = LoadView()
    load.routed("r1", 1, "a", 8_000, 0, 0.0)
    choice = choose(request(2_000), FLEET, {"b": 10}, load, 0.0)
    assert choice is not None
    by_name = {candidate.instance: candidate for candidate in choice.candidates}
    assert by_name["b"].reused_tokens == 640 == choice.reused_tokens
    assert (by_name["a"].backlog_s or 0) > 0
    assert choice.candidates[0].instance == "b", "best first"
    assert choice.predicted_ttft_s == by_name["b"].predicted_ttft_s
