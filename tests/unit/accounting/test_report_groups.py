"""Reports by group: the parts are the whole, whatever they are grouped by, and cost and waste add up."""

import csv
import io
import math
from typing import get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.accounting.rows import any_ended, ended

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.report import Part, Shape, build_report, cost, report_of
from goodput_accountant.policy.totals import CAUSES, Totals
from goodput_accountant.reporting.flat import write_csv
from tokenfleet.contracts.ledger import GroupBy, Report, SortBy, Summary

seconds = st.none() | st.floats(min_value=0, max_value=1e4)
PRICES = {"llama-70b@1": 7.2, "*": 3.6}


@st.composite
def any_row(draw: st.DrawFn) -> LedgerRow:
    """Of any tenant, pool, model and instance, with or without estimates of GPU time."""
    happened = draw(any_ended())
    model = draw(st.sampled_from(["llama-70b", "tiny"]))
    return account(
        msgspec.structs.replace(
            happened,
            tenant=draw(st.sampled_from(["acme", "other"])),
            model=model,
            pool=f"{model}@{draw(st.sampled_from('12'))}",
            instance=draw(st.sampled_from(["engine-1", "engine-2", None])),
            prefill_gpu_s=draw(seconds),
            decode_gpu_s=draw(seconds),
            retried_gpu_s=draw(st.floats(min_value=0, max_value=1e4)),
        )
    )


any_rows = st.lists(any_row(), max_size=10)
any_grouping = st.sampled_from(get_args(GroupBy))
FIGURES = [field.name for field in msgspec.structs.fields(Summary) if field.type is int]


@given(any_rows, any_grouping)
def test_groups_of_any_kind_add_up_to_the_total(rows: list[LedgerRow], by: GroupBy) -> None:
    report = build_report(rows, Shape(group_by=by, prices=PRICES))
    groups = list(report.groups.values())
    for name in FIGURES:
        assert sum(getattr(group, name) for group in groups) == getattr(report.total, name), name
    for name in ("gpu_s", "goodput_tokens_per_s", "output_tokens_per_s"):
        parts = sum(getattr(group, name) for group in groups)
        assert math.isclose(parts, getattr(report.total, name), rel_tol=1e-9, abs_tol=1e-6), name
    if report.total.cost is not None:
        assert math.isclose(sum(group.cost or 0.0 for group in groups), report.total.cost, abs_tol=1e-9)


@given(any_rows)
def test_waste_by_cause_adds_up_to_what_rows_say_was_wasted(rows: list[LedgerRow]) -> None:
    total = build_report(rows).total
    assert total.waste.keys() <= set(CAUSES)
    tokens = sum(waste.prefill_tokens + waste.decode_tokens for waste in total.waste.values())
    assert tokens == total.wasted_tokens == sum(row.wasted_tokens for row in rows)
    gpu_s = sum(waste.gpu_s for waste in total.waste.values())
    assert math.isclose(gpu_s, sum(row.wasted_gpu_s or 0.0 for row in rows), rel_tol=1e-6, abs_tol=1e-4)
    assert gpu_s <= total.gpu_s + 1e-6


@given(any_rows)
def test_every_request_is_met_missed_undeclared_or_not_judged(rows: list[LedgerRow]) -> None:
    total = build_report(rows).total
    unjudged = sum(row.met is None for row in rows)
    assert total.met + total.missed + unjudged == total.offered
    assert total.undeclared <= unjudged
    if total.attainment_offered is not None:
        assert total.attainment_offered == total.met / (total.met + total.missed)


@given(any_rows, any_grouping)
def test_a_report_from_totals_differs_from_one_of_rows_only_in_percentiles(
    rows: list[LedgerRow], by: GroupBy
) -> None:
    exact = build_report(rows, Shape(group_by=by))
    total = Part(Totals.of(rows))
    approximate = report_of(total, {}, {}, Shape(group_by=by)).total
    assert approximate.approximate
    percentiles = {"ttft_s": exact.total.ttft_s, "tpot_s": exact.total.tpot_s, "e2e_s": exact.total.e2e_s}
    assert msgspec.structs.replace(approximate, approximate=False, **percentiles) == exact.total


@given(st.lists(st.floats(min_value=1e-4, max_value=1e4), min_size=1, max_size=40))
def test_percentiles_of_totals_are_within_two_percent_of_those_of_rows(ttfts: list[float]) -> None:
    rows = [account(ended(str(number), ttft_s=ttft)) for number, ttft in enumerate(ttfts)]
    summary = report_of(Part(Totals.of(rows)), {}, {}, Shape()).total
    for percent, told in ((50, summary.ttft_s.p50), (95, summary.ttft_s.p95), (99, summary.ttft_s.p99)):
        assert told == pytest.approx(float(np.percentile(ttfts, percent)), rel=0.02)


def test_cost_is_gpu_hours_times_the_price_of_their_pool() -> None:
    gpu = {"prefill_gpu_s": 900.0, "decode_gpu_s": 900.0}
    rows = [
        account(ended("a", output_tokens=500_000, retried_gpu_s=1800.0, **gpu)),
        account(ended("b", pool="tiny@2", ttft_s=9.0, **gpu)),
    ]
    total = build_report(rows, Shape(prices=PRICES)).total
    assert total.cost == pytest.approx(7.2 + 1.8)
    assert total.cost_per_million_good_tokens == pytest.approx(18.0)


def test_cost_is_unknown_where_a_pool_that_computed_has_no_price() -> None:
    rows = [account(ended("a", prefill_gpu_s=1.0)), account(ended("b", pool="tiny@2", prefill_gpu_s=1.0))]
    assert cost(Totals.of(rows), {}) is None
    assert cost(Totals.of(rows), {"llama-70b@1": 1.0}) is None
    assert cost(Totals.of(rows[:1]), {"llama-70b@1": 1.0}) == pytest.approx(1 / 3600)
    assert cost(Totals.of([account(ended("engine not known"))]), PRICES) is None
    assert cost(Totals.of([]), PRICES) == 0.0
    good = build_report([account(ended("a", ttft_s=9.0, prefill_gpu_s=1.0))], Shape(prices=PRICES)).total
    assert (good.cost, good.cost_per_million_good_tokens) == (pytest.approx(0.002), None)


@given(any_rows, st.sampled_from(get_args(SortBy)), st.integers(1, 3))
def test_a_ranking_begins_with_the_most_and_says_how_many_it_leaves_out(
    rows: list[LedgerRow], sort: SortBy, limit: int
) -> None:
    def size(summary: Summary) -> float:
        figures = {
            "goodput": summary.good_output_tokens,
            "waste": summary.wasted_tokens,
            "misses": summary.missed,
            "cost": summary.cost or 0.0,
            "gpu": summary.gpu_s,
        }
        return figures[sort]

    whole = build_report(rows, Shape(group_by="instance", prices=PRICES))
    ranked = build_report(rows, Shape(group_by="instance", prices=PRICES, sort=sort, limit=limit))
    sizes = sorted(map(size, whole.groups.values()), reverse=True)
    assert list(map(size, ranked.groups.values())) == sizes[:limit]
    assert ranked.groups_left_out == max(len(sizes) - limit, 0)
    assert ranked.total == whole.total


@given(any_rows, any_grouping)
def test_csv_has_the_same_columns_whatever_there_was(rows: list[LedgerRow], by: GroupBy) -> None:
    written, of_nothing = (_csv(build_report(each, Shape(group_by=by))) for each in (rows, []))
    assert written[0].keys() == of_nothing[0].keys()
    assert len(of_nothing) == 1
    for name in FIGURES:
        assert sum(int(line[name]) for line in written[1:]) == int(written[0][name])


def _csv(report: Report) -> list[dict[str, str]]:
    text = io.StringIO()
    write_csv(report, text)
    return list(csv.DictReader(io.StringIO(text.getvalue())))
