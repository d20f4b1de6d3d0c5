"""What bars say of figures, one kind at a time."""

from typing import Any

import msgspec
import pytest

from lab.bars.kinds import BelowBaseline, BelowPeers, Cost, Limit, NotBeaten, Throughput
from lab.bars.model import ATTAINMENT_AFTER_500, GOODPUT, P50, P95, Measured, Source
from lab.bars.table import BARS
from lab.results.model import PolicyResult
from lab.scenarios.load import names

SOURCE = Source("test", "made up")


def result(
    p50: float,
    p95: float = 4.0,
    *,
    rejected: int = 0,
    spread: float = 0.0,
    goodput: float = 700.0,
    output: float = 800.0,
    after_500: float | None = None,
) -> PolicyResult:
    """A policy whose seeds differ by `spread` in each latency."""

    def figures(change: float) -> dict[str, Any]:
        ttft = {"p50": p50 + change, "p95": p95 + change, "p99": 9.0}
        return {
            "offered": 1_000,
            "completed": 1_000 - rejected,
            "rejected": rejected,
            "timed_out": 0,
            "cancelled": 0,
            "failed": 0,
            "output_tokens_per_s": output,
            "goodput_tokens_per_s": goodput,
            "attainment_offered": 0.9,
            "attainment_admitted": 0.9,
            "prefix_reuse": 0.1,
            "ttft_s": ttft,
            "tpot_s": {},
            "e2e_s": {},
            "after_500": after_500
            and {"offered": 500, "rejected": 0, "attainment_offered": after_500, "ttft_s": ttft},
        }

    ranges = {"min": figures(-spread / 2), "max": figures(spread / 2)}
    return msgspec.convert(figures(0.0) | ranges, PolicyResult)


def measured(**policies: PolicyResult) -> dict[str, Measured]:
    """One scenario `s`, with round robin unless it is given."""
    return {"s": Measured(policies={"round_robin": result(3.0, 30.0), **policies})}


@pytest.mark.parametrize(("p50", "passed"), [(0.58, True), (0.5801, False)])
def test_a_limit_is_kept_up_to_the_figure_itself_and_not_as_it_is_rounded(p50: float, passed: bool) -> None:
    bar = Limit(scenario="s", figure=P50, limit=0.58, source=SOURCE)
    (verdict,) = bar.judge(measured(tokenfleet_no_admission=result(p50)))
    assert verdict.passed is passed


def test_of_goodput_more_is_better() -> None:
    bar = Limit(scenario="s", figure=GOODPUT, limit=745, source=SOURCE)
    (verdict,) = bar.judge(measured(tokenfleet_no_admission=result(0.5, goodput=744.0)))
    assert not verdict.passed
    assert verdict.needed == "at least 745"


def test_the_best_peer_is_the_one_with_the_least_of_the_figure_asked_about() -> None:
    runs = measured(
        tokenfleet_no_admission=result(0.60, 4.5), llm_d=result(0.90, 5.0), dynamo_kv=result(1.0, 4.0)
    )
    (p50,) = BelowPeers(scenario="s", figure=P50, share=0.25, source=SOURCE).judge(runs)
    (p95,) = BelowPeers(scenario="s", figure=P95, share=0.0, source=SOURCE).judge(runs)
    assert (p50.passed, "llm-d" in p50.bar, p50.measured) == (True, True, "0.600 s (-33.3 %)")
    assert (p95.passed, "Dynamo KV" in p95.bar) == (False, True)


def test_the_least_predicted_ttft_itself_is_shown_beside_the_peers_and_does_not_count() -> None:
    runs = measured(tokenfleet_no_admission=result(0.60), llm_d=result(0.90), mooncake_conductor=result(0.61))
    peer, shown = BelowPeers(scenario="s", figure=P50, share=0.25, source=SOURCE).judge(runs)
    assert (peer.counted, peer.passed) == (True, True)
    assert (shown.counted, shown.passed) == (False, False)
    assert "Mooncake" in shown.bar


def test_a_peer_that_turns_requests_away_is_not_the_best_peer() -> None:
    runs = measured(tokenfleet_no_admission=result(0.60), llm_d=result(0.61, rejected=100), gorgo=result(0.9))
    (verdict,) = BelowPeers(scenario="s", figure=P50, share=0.25, source=SOURCE).judge(runs)
    assert "GORGO" in verdict.bar


def test_what_fits_nowhere_is_refused_by_everyone_and_counts_against_nobody() -> None:
    runs = measured(
        round_robin=result(3.0, rejected=100),
        tokenfleet_no_admission=result(0.60, rejected=100),
        llm_d=result(0.61, rejected=100),
    )
    assert runs["s"].serving == ["llm_d"]


def test_the_share_below_round_robin_is_of_round_robins_figure() -> None:
    bar = BelowBaseline(scenario="s", figure=P50, share=0.713, source=SOURCE)
    assert bar.judge(measured(tokenfleet_no_admission=result(0.86)))[0].passed
    assert not bar.judge(measured(tokenfleet_no_admission=result(0.87)))[0].passed


@pytest.mark.parametrize(("spread", "passed"), [(0.02, False), (0.04, True)])
def test_a_peer_is_better_when_it_is_by_more_than_either_range_over_the_seeds(
    spread: float, passed: bool
) -> None:
    runs = measured(tokenfleet_no_admission=result(0.63, spread=0.01), llm_d=result(0.60, spread=spread))
    (verdict,) = NotBeaten(scenario="s", figure=P50, source=SOURCE).judge(runs)
    assert verdict.passed is passed


def test_a_steady_peer_that_is_better_is_not_hidden_behind_a_noisy_one_that_is_better_still() -> None:
    runs = measured(
        tokenfleet_no_admission=result(0.63), llm_d=result(0.60, spread=0.1), dynamo_kv=result(0.61)
    )
    (verdict,) = NotBeaten(scenario="s", figure=P50, source=SOURCE).judge(runs)
    assert (verdict.passed, "Dynamo" in verdict.needed) == (False, True)


def test_a_peer_that_refuses_is_compared_with_tokenfleet_as_it_refuses() -> None:
    runs = measured(
        tokenfleet=result(0.5),
        tokenfleet_no_admission=result(0.8),
        llm_d=result(0.9),
        mooncake_conductor=result(0.6, rejected=50),
    )
    serving, refusing = NotBeaten(scenario="s", figure=P50, source=SOURCE).judge(runs)
    assert (serving.measured, serving.passed) == ("0.800 s", True)
    assert (refusing.measured, refusing.passed) == ("0.500 s", True)


@pytest.mark.parametrize(("output", "passed"), [(793.0, True), (791.0, False)])
def test_throughput_may_be_a_hundredth_below_the_best_peers(output: float, passed: bool) -> None:
    runs = measured(tokenfleet_no_admission=result(0.5, output=output), llm_d=result(0.9, output=800.0))
    (verdict,) = Throughput(scenario="s", within=0.01, source=SOURCE).judge(runs)
    assert verdict.passed is passed


@pytest.mark.parametrize(("after", "passed"), [(0.961, True), (0.959, False)])
def test_a_cost_is_in_points_against_the_other_scenario(after: float, passed: bool) -> None:
    bar = Cost(scenario="s", against="right", figure=ATTAINMENT_AFTER_500, most=0.01, source=SOURCE)
    runs = measured(tokenfleet_no_admission=result(0.5, after_500=after))
    runs["right"] = Measured(policies={"tokenfleet_no_admission": result(0.5, after_500=0.97)})
    (verdict,) = bar.judge(runs)
    assert verdict.passed is passed


def test_a_figure_that_is_missing_passes_no_bar() -> None:
    bar = Cost(scenario="s", against="s", figure=ATTAINMENT_AFTER_500, most=0.01, source=SOURCE)
    assert not bar.judge(measured(tokenfleet_no_admission=result(0.5)))[0].passed


def test_every_bar_is_about_a_scenario_there_is_and_says_where_it_comes_from() -> None:
    assert {bar.scenario for bar in BARS} <= set(names())
    assert all(getattr(bar, "source").text for bar in BARS)  # noqa: B009 - not of the protocol
