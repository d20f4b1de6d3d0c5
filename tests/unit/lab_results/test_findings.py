"""The sentences say what the figures say, also when TokenFleet loses."""

from typing import Any

import msgspec
import pytest

from lab.results.findings import best_baseline, lags, ranked, summary
from lab.results.model import Run


def _run(example: dict[str, Any]) -> Run:
    return msgspec.convert(example, Run)


def test_tokenfleet_comes_first_then_its_variants_then_baselines_by_goodput(example: dict[str, Any]) -> None:
    order = ranked(_run(example))
    assert order[:3] == ["tokenfleet", "tokenfleet_no_price", "lowest_ttft"]
    assert order[-1] == "random"


def test_the_best_baseline_is_never_a_variant_of_ours(example: dict[str, Any]) -> None:
    example["policies"]["tokenfleet_no_price"]["goodput_tokens_per_s"] = 9999.0
    assert best_baseline(_run(example)) == "lowest_ttft"


def test_the_summary_compares_with_the_bound_and_the_best_baseline(example: dict[str, Any]) -> None:
    text = summary(_run(example))
    assert "1,600 tokens/s of goodput (97.6 % of the bound's 1,640)" in text
    assert "4.2 % more than the best baseline, lowest TTFT (1,536)" in text
    assert "98.5 % meet their objective (lowest TTFT: 95.0 %)" in text
    assert "refuses 1.2 %" in text


def test_the_summary_says_less_when_a_baseline_wins(example: dict[str, Any]) -> None:
    example["policies"]["llm_d"]["goodput_tokens_per_s"] = 2000.0
    assert "20.0 % less than the best baseline, llm-d (2,000)" in summary(_run(example))


@pytest.mark.parametrize(("lowest", "said"), [(1590.0, False), (1500.0, True)])
def test_overlapping_ranges_over_the_seeds_are_said(
    example: dict[str, Any], lowest: float, said: bool
) -> None:
    example["policies"]["tokenfleet"]["min"]["goodput_tokens_per_s"] = lowest
    assert ("their ranges over the seeds overlap" in summary(_run(example))) is said


def test_a_figure_in_which_a_baseline_wins_is_listed_with_that_baseline(example: dict[str, Any]) -> None:
    example["policies"]["dynamo_kv"]["ttft_s"]["p95"] = 2.5
    example["policies"]["llm_d"]["classes"]["batch"]["attainment_offered"] = 0.999
    example["policies"]["random"]["input_lengths"]["longer"]["attainment_offered"] = 0.99
    assert [str(lag) for lag in lags(_run(example))] == [
        "TTFT P95, s: 2.94 against 2.50 (Dynamo KV)",
        "met of offered, batch: 98.5 % against 99.9 % (llm-d)",
        "met of offered, prompts above 64k: 97.7 % against 99.0 % (random)",
    ]


def test_what_reads_the_same_is_no_lag(example: dict[str, Any]) -> None:
    example["policies"]["llm_d"]["goodput_tokens_per_s"] = 1600.2
    assert lags(_run(example)) == []


def test_a_class_nobody_was_in_has_no_lag(example: dict[str, Any]) -> None:
    for result in example["policies"].values():
        result["classes"]["batch"]["attainment_offered"] = None
    assert not any("batch" in lag.figure and "met" in lag.figure for lag in lags(_run(example)))
