"""Totals add up whatever the split, and their histograms tell percentiles nearly as rows do."""

import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.accounting.rows import BASE_NS, SECOND_NS, any_ended, ended

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.histograms import HIGHEST_S, LARGEST_COUNT, LOWEST_S, SIZE, Histogram
from goodput_accountant.policy.totals import Totals, Waste
from tokenfleet.errors import ContractError

any_rows = st.lists(any_ended().map(account), max_size=8)
latencies = st.lists(st.floats(min_value=LOWEST_S, max_value=HIGHEST_S), min_size=1, max_size=50)


@given(any_rows, st.randoms(use_true_random=False))
def test_totals_of_any_split_add_up_to_those_of_all_rows(rows: list[LedgerRow], dice: random.Random) -> None:
    parts = [Totals.of(part) for part in _dealt(rows, dice)]
    assert Totals.sum(parts) == Totals.of(rows)


@given(any_rows, any_rows)
def test_what_was_added_can_be_taken_away_again(kept: list[LedgerRow], replaced: list[LedgerRow]) -> None:
    left = Totals.of(kept + replaced) - Totals.of(replaced)
    assert msgspec.structs.replace(left, spans=Totals.of(kept).spans) == Totals.of(kept)


@given(any_rows)
def test_output_is_good_wasted_or_neutral(rows: list[LedgerRow]) -> None:
    totals = Totals.of(rows)
    wasted = sum(waste.decode_tokens for cause, waste in totals.waste.items() if cause != "retried")
    assert totals.output_tokens == totals.good_tokens + wasted + totals.neutral_tokens
    assert totals.wasted_tokens == sum(row.wasted_tokens for row in rows)
    assert sum(totals.outcomes.values()) == totals.rows == len(rows)
    assert totals.met_admitted <= totals.met <= totals.judged <= totals.rows - totals.undeclared


def test_bytes_of_something_else_are_refused() -> None:
    with pytest.raises(ContractError, match="not a multiple of 6"):
        Histogram.from_bytes(b"12345")
    with pytest.raises(ContractError, match="bucket 65535"):
        Histogram.from_bytes(b"\xff\xff\x01\x00\x00\x00")


def test_each_cause_of_waste_has_its_tokens_and_gpu_time() -> None:
    gpu = {"prefill_gpu_s": 0.5, "decode_gpu_s": 0.25}
    rows = [
        account(ended("good", retried_input_tokens=70, retried_output_tokens=3, retried_gpu_s=0.1, **gpu)),
        account(ended("late", ttft_s=9.0, **gpu)),
        account(ended("gone", outcome="cancelled", output_tokens=7, **gpu)),
        account(ended("silent", outcome="lost", output_tokens=0, reused_tokens=0, ttft_s=0.5, tpot_s=None)),
        account(ended("refused", outcome="rejected", admitted=False, instance=None, output_tokens=0)),
    ]
    totals = Totals.of(rows)
    assert totals.waste == {
        "retried": Waste(1, 70, 3, 100_000),
        "late": Waste(1, 600, 100, 750_000),
        "cancelled": Waste(1, 600, 7, 750_000),
        "lost": Waste(1, 1000, 0, 0),
    }
    assert totals.gpu_us == {"llama-70b@1": 2_350_000}
    assert totals.gpu_unknown == 1


def test_undeclared_requests_are_counted_apart_and_neither_met_nor_missed() -> None:
    totals = Totals.of([account(ended("a")), account(ended("b", objective=None, output_tokens=30))])
    assert (totals.judged, totals.met, totals.undeclared) == (1, 1, 1)
    assert (totals.undeclared_output_tokens, totals.neutral_tokens) == (30, 30)


def test_missed_terms_are_counted_each() -> None:
    rows = [account(ended("a", ttft_s=9.0)), account(ended("b", ttft_s=9.0, tpot_s=1.0)), account(ended("c"))]
    assert Totals.of(rows).missed_terms == {"ttft": 2, "tpot": 1}


def test_rows_of_different_time_scales_have_spans_of_their_own() -> None:
    later = {"submitted_ns": BASE_NS + SECOND_NS, "time_ns": BASE_NS + 30 * SECOND_NS}
    rows = [account(ended("a")), account(ended("b", **later)), account(ended("c", time_scale=5.0))]
    totals = Totals.of(rows)
    assert totals.spans == {
        1.0: (BASE_NS, BASE_NS + 30 * SECOND_NS),
        5.0: (BASE_NS, BASE_NS + 10 * SECOND_NS),
    }
    assert totals.duration_s == 30.0 + 50.0


@given(latencies)
def test_percentiles_of_a_histogram_are_within_two_percent_of_those_of_rows(values: list[float]) -> None:
    histogram = Histogram.of(values)
    for percent in (50, 95, 99):
        exact = float(np.percentile(values, percent))
        assert histogram.percentile(percent) == pytest.approx(exact, rel=0.02)


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=30), st.integers(0, 30))
def test_joined_bytes_are_the_sum_of_histograms(values: list[float], cut: int) -> None:
    one, other = Histogram.of(values[:cut]), Histogram.of(values[cut:])
    whole = Histogram.of(values)
    assert whole.total == len(values)
    assert Histogram.from_bytes(one.to_bytes() + other.to_bytes()) == whole == one + other
    assert Histogram.from_bytes((one - whole).to_bytes()) == Histogram() - other


def test_counts_beyond_32_bits_are_stored() -> None:
    counts = np.zeros(SIZE, dtype=np.int64)
    counts[7], counts[9] = 3 * LARGEST_COUNT, 5
    histogram = Histogram(counts)
    assert Histogram.from_bytes(histogram.to_bytes()) == histogram


def test_latencies_outside_the_grid_are_counted_at_its_ends() -> None:
    histogram = Histogram.of([0.0, LOWEST_S / 2, HIGHEST_S * 50])
    assert histogram.percentile(0) == LOWEST_S
    assert histogram.percentile(100) == HIGHEST_S
    assert Histogram().percentile(50) is None


def _dealt(rows: Sequence[LedgerRow], dice: random.Random) -> list[list[LedgerRow]]:
    hands: list[list[LedgerRow]] = [[], [], []]
    for row in rows:
        dice.choice(hands).append(row)
    return hands
