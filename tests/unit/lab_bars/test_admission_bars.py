"""What the bars of admission say of figures."""

from typing import Any

import msgspec
import pytest

from lab.bars.admission_kinds import Ahead, Fills, Moves, NoLess
from lab.bars.admission_table import ADMISSION_BARS
from lab.bars.command import EVERY_BAR
from lab.bars.measure import needs_of
from lab.bars.model import LEAST_LENGTH, OTHERS_P95, STARVED, WITH_ADMISSION, Measured, Source, class_met
from lab.results.model import PolicyResult
from lab.scenarios.load import names
from lab.sim.policies import known

SOURCE = Source("test", "made up")
TTFT = {"p50": 1.0, "p95": 4.0, "p99": 9.0}


def result(
    *, goodput: float = 700.0, output: float = 800.0, spread: float = 0.0, **more: Any
) -> PolicyResult:
    """A policy whose seeds differ by `spread` in all output."""

    def figures(change: float) -> dict[str, Any]:
        return {
            "offered": 1_000,
            "completed": 900,
            "rejected": 100,
            "timed_out": 0,
            "cancelled": 0,
            "failed": 0,
            "output_tokens_per_s": output + change,
            "goodput_tokens_per_s": goodput,
            "attainment_offered": 0.9,
            "attainment_admitted": 0.95,
            "prefix_reuse": 0.1,
            "ttft_s": TTFT,
            "tpot_s": {},
            "e2e_s": {},
        } | more

    return msgspec.convert(
        figures(0.0) | {"min": figures(-spread / 2), "max": figures(spread / 2)}, PolicyResult
    )


def part(met: float, p95: float = 4.0) -> dict[str, Any]:
    return {"offered": 10, "rejected": 0, "attainment_offered": met, "ttft_s": TTFT | {"p95": p95}}


def batch(work: float, others: float = 0.0) -> dict[str, Any]:
    return {
        "lines": 10,
        "deadlines": 10,
        "deadlines_met": 1.0,
        "window_s": 100.0,
        "output_tokens_per_s": 50.0,
        "work_per_s": work,
        "others_work_per_s": others,
    }


def measured(**policies: PolicyResult) -> Measured:
    return Measured(policies=policies)


AHEAD = Ahead(scenario="s", factor=3.0, rivals=("llm_d", "dynamo_kv"), which="of them", source=SOURCE)


@pytest.mark.parametrize(("goodput", "passed"), [(600.0, True), (599.0, False)])
def test_goodput_is_compared_with_the_best_of_the_peers_named(goodput: float, passed: bool) -> None:
    runs = measured(
        tokenfleet=result(goodput=goodput),
        llm_d=result(goodput=200.0),
        dynamo_kv=result(goodput=100.0),
        mooncake_conductor=result(goodput=900.0),
    )
    verdict, _ = AHEAD.judge({"s": runs})
    assert (verdict.passed, "llm-d" in verdict.needed, verdict.policy) == (passed, True, WITH_ADMISSION)


def test_being_ahead_in_goodput_at_less_output_than_that_peer_is_a_bar_missed() -> None:
    runs = measured(
        tokenfleet=result(goodput=900.0, output=900.0),
        llm_d=result(goodput=200.0, output=1_000.0),
        dynamo_kv=result(goodput=100.0, output=2_000.0),
    )
    goodput, output = AHEAD.judge({"s": runs})
    assert (goodput.passed, output.passed, "1,000" in output.needed) == (True, False, True)


@pytest.mark.parametrize(("spread", "passed"), [(9.0, False), (10.0, True)])
def test_output_may_be_less_by_as_much_as_the_seeds_differ(spread: float, passed: bool) -> None:
    runs = measured(
        tokenfleet=result(output=790.0), least_requests=result(goodput=1.0, output=800.0, spread=spread)
    )
    (verdict,) = NoLess(scenario="s", rival="least_requests", source=SOURCE).judge({"s": runs})
    assert verdict.passed is passed


@pytest.mark.parametrize(("p95", "passed"), [(4.39, True), (4.4, False), (3.0, True)])
def test_the_other_tenants_latency_may_rise_by_less_than_a_tenth(p95: float, passed: bool) -> None:
    bar = Moves(scenario="flood", against="quiet", figure=OTHERS_P95, most=0.1, source=SOURCE)
    runs = {
        "flood": measured(tokenfleet=result(others=part(0.9, p95))),
        "quiet": measured(tokenfleet=result(others=part(0.9, 4.0))),
    }
    assert bar.judge(runs)[0].passed is passed


@pytest.mark.parametrize(("work", "passed"), [(3.6, True), (3.5, False)])
def test_batch_gets_its_share_of_what_others_leave_of_the_most_anybody_gets_done(
    work: float, passed: bool
) -> None:
    bar = Fills(scenario="mixed", saturated="batch", least=0.9, source=SOURCE)
    runs = {
        "mixed": measured(tokenfleet=result(batch=batch(work, others=3.0))),
        "batch": measured(tokenfleet=result(batch=batch(5.0)), least_requests=result(batch=batch(7.0))),
    }
    (verdict,) = bar.judge(runs)
    assert (verdict.passed, "of 4.00" in verdict.measured) == (passed, True)


def test_a_run_without_batch_lines_fills_nothing() -> None:
    bar = Fills(scenario="s", saturated="s", least=0.9, source=SOURCE)
    assert not bar.judge({"s": measured(tokenfleet=result())})[0].passed


def test_figures_of_parts_are_those_of_the_worst_length_class_and_of_one_class() -> None:
    lengths = {"4k": part(0.99), "64k": part(0.7), "longer": part(0.7) | {"attainment_offered": None}}
    figures = result(input_lengths=lengths, starved_s=61.0)
    assert LEAST_LENGTH.value(figures) == 0.7
    assert STARVED.value(figures) == 61.0
    assert class_met("interactive").value(figures) is None


def test_every_bar_of_admission_is_about_scenarios_and_policies_there_are() -> None:
    needed = needs_of(ADMISSION_BARS)
    assert set(needed) <= set(names())
    assert all(who.ours | who.peers <= set(known()) for who in needed.values())
    assert all(WITH_ADMISSION in who.ours for who in needed.values())


def test_who_has_to_run_a_scenario_is_what_all_its_bars_need() -> None:
    burst = needs_of(EVERY_BAR)["burst"]
    assert burst.ours == {"tokenfleet", "tokenfleet_no_admission"}
    assert "llm_d" in burst.peers
