"""Rows added up: every figure over what it says it is over."""

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from unit.accounting.rows import BASE_NS, SECOND_NS, any_ended, ended

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.report import build_report, duration, summarise

UNANSWERED: dict[str, Any] = {"ttft_s": None, "tpot_s": None, "output_tokens": 0, "instance": None}
COUNTS = ("offered", "completed", "rejected", "timed_out", "cancelled", "failed", "ledger_rows", "degraded")
TOKENS = ("input_tokens", "output_tokens", "wasted_tokens")

any_rows = st.lists(any_ended().map(account), max_size=5)


def test_refused_requests_stay_in_the_denominator_of_what_was_offered() -> None:
    rows = [
        account(ended("kept")),
        account(ended("late", ttft_s=9.0)),
        account(ended("refused", outcome="rejected", status=429, admitted=False, **UNANSWERED)),
        account(ended("lost", outcome="timed_out", **UNANSWERED)),
        account(ended("no promise", objective=None)),
    ]
    summary = build_report(rows).total
    assert summary.attainment_offered == 1 / 4
    assert summary.attainment_admitted == 1 / 3
    assert summary.offered == summary.ledger_rows == 5


def test_goodput_counts_only_tokens_of_good_requests_over_engine_seconds() -> None:
    first = ended("a", output_tokens=300, time_scale=5.0)
    late = ended(
        "b", output_tokens=100, ttft_s=9.0, time_scale=5.0, submitted_ns=BASE_NS + 2 * SECOND_NS,
        time_ns=BASE_NS + 12 * SECOND_NS,
    )  # fmt: skip
    summary = build_report([account(first), account(late)]).total
    assert summary.duration_s == 60.0
    assert summary.goodput_tokens_per_s == 5.0
    assert summary.output_tokens_per_s == 400 / 60


def test_durations_of_runs_at_different_time_scales_are_added() -> None:
    slow = account(ended("a", time_scale=1.0))
    fast = account(ended("b", time_scale=5.0))
    assert duration([slow, fast]) == 10.0 + 50.0


def test_reuse_is_over_requests_whose_answer_began() -> None:
    rows = [
        account(ended("a")),
        account(ended("b", outcome="timed_out", **UNANSWERED)),
        account(ended("c", outcome="cancelled", ttft_s=None, tpot_s=None, output_tokens=0)),
    ]
    assert build_report(rows).total.prefix_reuse == 0.4


def test_percentiles_are_over_the_requests_that_have_the_figure() -> None:
    rows = [account(ended(str(number), ttft_s=number / 100)) for number in range(101)]
    rows.append(account(ended("refused", outcome="rejected", e2e_s=0.0, **UNANSWERED)))
    summary = build_report(rows).total
    assert (summary.ttft_s.p50, summary.ttft_s.p95, summary.ttft_s.p99) == (0.5, 0.95, 0.99)
    assert summary.e2e_s.p50 == 10.0


def test_an_empty_ledger_reports_zeros_and_unknowns() -> None:
    report = build_report([])
    assert report.total.offered == 0
    assert report.total.goodput_tokens_per_s == 0.0
    assert report.total.attainment_offered is None
    assert report.total.prefix_reuse is None
    assert report.total.ttft_s.p50 is None
    assert report.classes == {}


def test_ids_are_listed_on_request_and_classless_requests_are_named() -> None:
    rows = [account(ended("a")), account(ended("b", request_class=None, client_request_id=None))]
    assert build_report(rows).client_request_ids == ()
    report = build_report(rows, list_ids=True)
    assert report.client_request_ids == ("run-a",)
    assert set(report.classes) == {"interactive", "unclassified"}


@given(any_rows)
def test_classes_add_up_to_the_total(rows: list[LedgerRow]) -> None:
    report = build_report(rows)
    for name in COUNTS + TOKENS:
        parts = sum(getattr(summary, name) for summary in report.classes.values())
        assert parts == getattr(report.total, name)
    goodput = sum(summary.goodput_tokens_per_s for summary in report.classes.values())
    assert math.isclose(goodput, report.total.goodput_tokens_per_s, rel_tol=1e-9)
    total = report.total
    outcomes = total.completed + total.rejected + total.timed_out + total.cancelled + total.failed
    assert total.offered == outcomes


@given(any_rows, any_rows)
def test_a_union_reports_what_its_parts_say(left: list[LedgerRow], right: list[LedgerRow]) -> None:
    one, other, both = (summarise(rows, 100.0) for rows in (left, right, left + right))
    for name in COUNTS + TOKENS:
        assert getattr(both, name) == getattr(one, name) + getattr(other, name)
    goodput = one.goodput_tokens_per_s + other.goodput_tokens_per_s
    assert math.isclose(both.goodput_tokens_per_s, goodput, rel_tol=1e-9)
    for name in ("attainment_offered", "attainment_admitted", "prefix_reuse"):
        _assert_between(getattr(one, name), getattr(other, name), getattr(both, name))


def _assert_between(one: float | None, other: float | None, both: float | None) -> None:
    parts: Sequence[float] = [share for share in (one, other) if share is not None]
    if parts:
        assert both is not None
        assert min(parts) - 1e-9 <= both <= max(parts) + 1e-9
    else:
        assert both is None


@given(any_rows)
def test_shares_are_shares_and_goodput_is_at_most_the_output(rows: list[LedgerRow]) -> None:
    total = build_report(rows).total
    for share in (total.attainment_offered, total.attainment_admitted, total.prefix_reuse):
        assert share is None or 0 <= share <= 1
    assert total.goodput_tokens_per_s <= total.output_tokens_per_s


def test_predictions_are_compared_with_what_came_over_first_attempts_that_have_both() -> None:
    rows = [
        account(ended("a", ttft_s=1.0, predicted_ttft_s=1.2)),
        account(ended("b", ttft_s=2.0, predicted_ttft_s=1.0)),
        account(ended("c", ttft_s=1.0, predicted_ttft_s=9.0, attempt=2)),
        account(ended("d", ttft_s=1.0)),
        account(ended("e", outcome="timed_out", predicted_ttft_s=9.0, **UNANSWERED)),
    ]
    prediction = build_report(rows).prediction
    assert prediction.ttft.n == 2
    assert prediction.ttft.median_ape is not None
    assert math.isclose(prediction.ttft.median_ape, 0.35)
    assert (prediction.tpot.n, prediction.tpot.median_ape) == (0, None)
