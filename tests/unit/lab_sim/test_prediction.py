"""How right predictions were: over the requests that have them, and counted as their clients count."""

from collections.abc import Iterable
from typing import Any

import pytest
from sim_worlds import Keeper, Watcher, cluster, submission

from lab.sim.api import Arrival, Decision, Outcome, Released, Route
from lab.sim.figures import policy_figures
from lab.sim.prediction import WARM_UP, prediction_figures
from lab.sim.simulator import Simulation
from lab.sim.workload import arrival
from tokenfleet.contracts.policy import Policy


def outcome(number: int, *, input_tokens: int = 1_000, **fields: Any) -> Outcome:
    sent = submission(number, float(number), input_tokens)
    return Outcome(
        arrival=arrival(sent, "m", 16, ())._replace(blocks=()),
        outcome="completed",
        reason="stop",
        status=200,
        ended_s=number + 10.0,
        **fields,
    )


def test_errors_are_shares_of_what_came_over_the_requests_that_have_both() -> None:
    figures = prediction_figures(
        [
            outcome(0, ttft_s=1.0, predicted_ttft_s=1.1),
            outcome(1, ttft_s=2.0, predicted_ttft_s=1.0),
            outcome(2, ttft_s=4.0, predicted_ttft_s=5.2),
            outcome(3, ttft_s=9.0),
            outcome(4, predicted_ttft_s=9.0),
        ]
    )
    assert figures is not None
    ttft = figures["ttft"]
    assert ttft["n"] == 3
    assert ttft["median_ape"] == pytest.approx(0.3)
    assert ttft["p90_ape"] == pytest.approx(0.46)
    assert figures["tpot"]["n"] == 0


def test_coverage_is_the_share_at_most_what_was_predicted() -> None:
    figures = prediction_figures(
        [
            outcome(0, tpot_s=1.0, predicted_tpot_s=1.0, predicted_tpot_p90_s=2.0),
            outcome(1, tpot_s=3.0, predicted_tpot_s=1.0, predicted_tpot_p90_s=2.0),
            outcome(2, tpot_s=0.5, predicted_tpot_s=1.0),
            outcome(3, tpot_s=1.5, predicted_tpot_s=1.0, predicted_tpot_p90_s=2.0),
        ]
    )
    assert figures is not None
    assert figures["tpot"]["covered_p50"] == 1 / 2
    assert figures["tpot"]["covered_p90"] == 2 / 3


def test_what_was_learned_is_judged_on_the_requests_that_came_after_the_first_500() -> None:
    early = [outcome(number, ttft_s=1.0, predicted_ttft_s=2.0) for number in range(WARM_UP)]
    late = [outcome(WARM_UP + number, ttft_s=1.0, predicted_ttft_s=1.25) for number in range(10)]
    figures = prediction_figures([*early, *late])
    assert figures is not None
    assert figures["ttft"]["median_ape"] == 1.0
    assert figures["ttft"]["median_ape_after_500"] == 0.25
    assert figures["ttft"]["n_after_500"] == 10


def test_each_prompt_length_has_its_own_errors_so_that_none_is_hidden() -> None:
    short = [outcome(number, ttft_s=1.0, predicted_ttft_s=1.0) for number in range(9)]
    figures = prediction_figures([*short, outcome(9, input_tokens=100_000, ttft_s=1.0, predicted_ttft_s=3.0)])
    assert figures is not None
    lengths = figures["ttft"]["input_lengths"]
    assert (lengths["4k"]["n"], lengths["4k"]["median_ape"]) == (9, 0.0)
    assert (lengths["longer"]["n"], lengths["longer"]["median_ape"]) == (1, 2.0)
    assert "16k" not in lengths


def test_a_policy_that_predicts_nothing_has_no_errors() -> None:
    work = [submission(number, number * 0.1) for number in range(4)]
    figures = policy_figures(Simulation(cluster(), work, Watcher()).run(), Policy())
    assert figures["prediction"] is None


class Predicting(Watcher):
    """Predicts the same for everyone."""

    def decide(self, arrival: Arrival, now_s: float) -> Decision:
        route = super().decide(arrival, now_s)
        assert isinstance(route, Route)
        return route._replace(
            predicted_ttft_s=0.5, predicted_ttft_p90_s=0.8, predicted_tpot_s=0.02, predicted_tpot_p90_s=0.03
        )


def test_a_run_keeps_what_was_predicted_of_each_request() -> None:
    result = Simulation(cluster(), [submission(0, 1.0)], Predicting()).run()
    (one,) = result.outcomes
    assert (one.predicted_ttft_s, one.predicted_ttft_p90_s) == (0.5, 0.8)
    assert (one.predicted_tpot_s, one.predicted_tpot_p90_s) == (0.02, 0.03)
    assert one.ttft_s is not None
    prediction = policy_figures(result, Policy())["prediction"]
    assert prediction["ttft"]["median_ape"] == pytest.approx(abs(0.5 - one.ttft_s) / one.ttft_s)
    assert prediction["tpot"]["n"] == 1


class KeepingPredicting(Keeper):
    """Holds everything until a time, and predicts when it lets go."""

    def release(self, now_s: float) -> Iterable[Released]:
        return [
            Released(released.request_id, Route("i0", predicted_ttft_s=0.5))
            for released in super().release(now_s)
        ]


def test_a_prediction_made_when_a_request_was_let_go_counts_from_its_arrival_as_its_ttft_does() -> None:
    (one,) = Simulation(cluster(1), [submission(0, 1.0)], KeepingPredicting(until_s=3.0)).run().outcomes
    assert one.ttft_s is not None
    assert one.ttft_s > 2.0
    assert one.predicted_ttft_s == pytest.approx(2.5, abs=0.1)


def test_what_came_after_the_first_500_is_kept_apart() -> None:
    work = [submission(number, number * 0.2, 100, 2) for number in range(WARM_UP + 20)]
    figures = policy_figures(Simulation(cluster(), work, Watcher()).run(), Policy())
    assert figures["after_500"]["offered"] == 20
    assert figures["after_500"]["attainment_offered"] == 1.0
