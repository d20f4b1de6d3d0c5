"""What it costs to send a request somewhere: its own latency, and the harm to others."""

import pytest
from fleets import PROFILE, view
from loads import TIGHT_TPOT_S, decode
from unit.tokenpilot.situations import choice_of, chosen, told

from tokenfleet.contracts.requests import Objective
from tokenfleet.load import LoadView
from tokenpilot.policy import cost
from tokenpilot.policy.demand import Demand

PAIR = [view("a"), view("b")]


def short_answers_at(instance: str, *, beside: int = 0) -> LoadView:
    """Answers that must come fast at one instance; at the others a prompt of so many tokens is pending."""
    load = LoadView()
    for number in range(5):
        decode(load, f"r{number}", instance, tpot_objective_s=TIGHT_TPOT_S, max_output_tokens=20)
    if beside:
        for name in {"a", "b"} - {instance}:
            load.routed(f"on-{name}", 1, name, beside, beside // 2, 0.0)
    return load


class TestHarmToOthers:
    def test_a_long_prompt_waits_elsewhere_rather_than_break_short_answers(self):
        choice = choice_of(30_000, short_answers_at("a", beside=8_000), fleet=PAIR)
        assert choice.instance.record.instance == "b" and choice.reason == "spares_others"
        at_a, at_b = told(choice)["a"], told(choice)["b"]
        assert (at_a.predicted_ttft_s or 0) < (at_b.predicted_ttft_s or 0)
        assert (at_a.expected_misses or 0) == pytest.approx(5.0) and at_b.expected_misses == 0.0

    def test_a_short_prompt_harms_nobody_and_goes_where_it_is_served_first(self):
        assert chosen(200, short_answers_at("a", beside=8_000), fleet=PAIR) == "a"

    def test_a_miss_is_worth_seconds_not_any_wait(self):
        load = LoadView()
        decode(load, "one", "a", tpot_objective_s=TIGHT_TPOT_S, max_output_tokens=20)
        load.routed("huge", 1, "b", 120_000, 0, 0.0)
        assert chosen(30_000, load, fleet=PAIR) == "a"


class TestEviction:
    def test_blocks_go_where_those_they_push_out_are_the_oldest(self):
        demand = Demand()
        for name, last_used_s in (("a", 590.0), ("b", 100.0)):
            for number in range(12):
                demand.routed(
                    name, PROFILE.kv_capacity_tokens // 10, PROFILE.kv_capacity_tokens, last_used_s + number
                )
        assert {chosen(8_000, fleet=PAIR, demand=demand, now_s=600.0, draw=draw) for draw in (0, 0.9)} == {
            "b"
        }

    def test_a_prompt_that_is_cached_pushes_little_out(self):
        demand = Demand()
        for number in range(12):
            demand.routed("a", PROFILE.kv_capacity_tokens // 10, PROFILE.kv_capacity_tokens, number * 0.1)
        assert chosen(8_000, matched={"a": 124}, fleet=PAIR, demand=demand, now_s=2.0) == "a"


class TestCrowding:
    def arriving_every(self, seconds: float) -> Demand:
        demand = Demand()
        demand.interval_s = seconds
        return demand

    def preference_for_less_work(self, every_s: float) -> float:
        """How much less a queue at a cached prefix costs than an idle engine without it."""
        load = LoadView()
        load.routed("r", 1, "a", 12_000, 0, 0.0)
        choice = choice_of(20_000, load, {"a": 200}, fleet=PAIR, demand=self.arriving_every(every_s))
        costs = {name: candidate.cost_s or 0.0 for name, candidate in told(choice).items()}
        return costs["b"] - costs["a"]

    def test_the_more_arrives_the_more_is_work_saved_worth(self):
        assert self.preference_for_less_work(0.2) > self.preference_for_less_work(60.0)

    def test_when_nothing_else_arrives_nobody_is_in_the_way(self):
        def idle_cost_s(every_s: float) -> float:
            choice = choice_of(20_000, fleet=PAIR, demand=self.arriving_every(every_s))
            return told(choice)["a"].cost_s or 0.0

        assert idle_cost_s(60.0) < idle_cost_s(0.2)


class TestPatience:
    def wait_cost_s(self, objective: Objective | None) -> float:
        """What waiting behind others adds to the cost."""
        load = LoadView()
        load.routed("r", 1, "a", 8_000, 0, 0.0)
        choice = choice_of(1_000, load, fleet=PAIR, objective=objective)
        costs = {name: candidate.cost_s or 0.0 for name, candidate in told(choice).items()}
        return costs["a"] - costs["b"]

    def test_a_wait_costs_less_the_more_slack_there_is(self):
        objectives = [Objective(ttft_s=ttft_s) for ttft_s in (0.5, 2.0, 4.0, 16.0)]
        costs_s = [self.wait_cost_s(objective) for objective in objectives]
        assert costs_s == sorted(costs_s, reverse=True) and len(set(costs_s)) == 4

    def test_the_end_to_end_objective_counts_where_there_is_no_other(self):
        assert self.wait_cost_s(Objective(e2e_s=3_600.0)) < self.wait_cost_s(Objective(ttft_s=4.0))

    def test_without_an_objective_a_second_is_a_second(self):
        alike = self.wait_cost_s(Objective(ttft_s=cost.USUAL_SLACK_S + 0.1))
        assert self.wait_cost_s(None) == pytest.approx(alike, rel=0.03)
        assert self.wait_cost_s(Objective()) == self.wait_cost_s(None)


def test_of_many_instances_those_are_looked_at_closely_that_cost_least_without_a_closer_look():
    fleet = [view(f"i{number:02d}") for number in range(2 * cost.LOOKED_AT)]
    load = LoadView()
    for number, one in enumerate(fleet):
        load.routed(f"r{number}", 1, one.record.instance, 1_000 * (number + 1), 0, 0.0)
    candidates = choice_of(10_000, load, {}, fleet=fleet, now_s=0.0).candidates
    costs = {one.instance: one.cost_s for one in candidates}
    assert all(costs.get(f"i{number:02d}") is None for number in range(cost.LOOKED_AT, 2 * cost.LOOKED_AT))
    assert costs["i00"] is not None
