"""The bounds, on workloads whose best can be told by hand."""

import pytest
from sim_worlds import SMALL, cluster, submission

from lab.sim.figures import policy_figures
from lab.sim.oracle import bound, infinite_cache_reuse
from lab.sim.policies import make_policy
from lab.sim.simulator import Simulation
from tokenfleet.contracts.policy import Policy
from tokenfleet.engine.profile import prefill_s


def test_the_infinite_cache_holds_every_earlier_prompt_in_whole_blocks_but_never_the_last_token() -> None:
    work = [
        submission(0, 0.0, 1_024, session=1),
        submission(1, 1.0, 1_024, session=1),
        submission(2, 2.0, 1_024),
    ]
    assert list(infinite_cache_reuse(work, 16)) == [0, 1_008, 0]


def test_ttft_is_bounded_by_the_own_prefill_on_an_empty_instance() -> None:
    found = bound(cluster(), [submission(0, 0.0, 6_000)], Policy())
    assert found["ttft_s"]["p50"] == pytest.approx(prefill_s(SMALL, 6_000, 0))


def test_with_capacity_to_spare_everything_counts_and_without_it_only_what_fits() -> None:
    few = [submission(number, number * 1.0, 4_000, 50) for number in range(20)]
    many = [submission(number, number * 0.01, 4_000, 50) for number in range(2_000)]
    assert bound(cluster(), few, Policy())["attainment_offered"] == 1.0
    assert bound(cluster(), many, Policy())["attainment_offered"] < 0.3


def test_a_request_that_misses_even_alone_counts_for_nothing() -> None:
    strict = Policy(long_context_tokens=1)
    impatient = submission(0, 0.0, 4_000, 1_000, timeout_s=600.0)
    assert bound(cluster(), [impatient], strict)["attainment_offered"] == 1.0
    tight = Policy(objectives={"interactive": Policy().objectives["interactive"].__class__(ttft_s=0.01)})
    assert bound(cluster(), [impatient], tight)["attainment_offered"] == 0.0


@pytest.mark.parametrize("name", ["tokenfleet", "round_robin", "least_requests"])
@pytest.mark.parametrize("gap_s", [0.05, 0.3, 2.0])
def test_no_policy_is_better_than_the_bound(name: str, gap_s: float) -> None:
    work = [submission(number, number * gap_s, 3_000, 60, session=number % 7) for number in range(60)]
    figures = policy_figures(Simulation(cluster(), work, make_policy(name, 0)).run(), Policy())
    best = bound(cluster(), work, Policy())
    assert figures["goodput_tokens_per_s"] <= best["goodput_tokens_per_s"]
    assert figures["attainment_offered"] <= best["attainment_offered"]
    if not figures["rejected"]:
        assert figures["ttft_s"]["p50"] >= best["ttft_s"]["p50"] - 1e-9


def test_a_last_request_that_only_some_would_serve_does_not_loosen_what_the_others_can_reach() -> None:
    short = [submission(number, number * 0.1, 2_000, 50) for number in range(20)]
    late_and_long = submission(20, 2.0, 2_000, 2_000)
    served = policy_figures(Simulation(cluster(), short, make_policy("round_robin", 0)).run(), Policy())
    best = bound(cluster(), [*short, late_and_long], Policy())
    # Whoever refuses the last one ends a minute earlier, and has the rate of the others.
    assert best["goodput_tokens_per_s"] >= 0.9 * served["goodput_tokens_per_s"]


def test_nothing_offered_has_a_bound_of_nothing() -> None:
    assert bound(cluster(), [], Policy())["goodput_tokens_per_s"] == 0.0
