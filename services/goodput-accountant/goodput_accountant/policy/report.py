"""Ledger rows, or totals of rows, made into reports.

Sums are those of `totals`; `accounting` says what each row adds to them.

- duration     engine seconds from the first submission to the last end: `(last end - first submitted) * time_scale`. Rows
               of different time scales share no time axis: their durations are added. A group is measured over the
               duration of the whole report, so that rates of the groups add up to that of the report.
- goodput      `good_output_tokens / duration`: output tokens of requests that completed and met every term of their
               objective that could be judged; output tokens/s likewise over all requests.
- attainment   `met / (met + missed)`. Rejected, timed out, failed and lost requests with an objective are missed and
               stay in the denominator. "Offered" is over all rows, "admitted" over those that were admitted. Requests
               without a declared term are in neither: `undeclared` counts them.
- missed terms requests by each term over its limit; one that was rejected or never answered may have missed none.
- waste        by cause: computed prompt tokens, output tokens, and GPU-seconds of both.
- output       `good + neutral + decode tokens wasted by all causes but retried`; what abandoned attempts put out comes on top.
- GPU-seconds  `prefill + decode` of all attempts, as estimated; `gpu_unknown` requests are in no such figure.
- cost         `sum over pools of gpu_s / 3600 * price of a GPU-hour there`, by the prices of now; per million good tokens:
               `cost / good_output_tokens * 10**6`. The time GPUs are idle is not in it. None where there is no price.
- prefix reuse `reused / input` tokens of requests whose answer began.
- prediction   absolute error as a share of the figure, over requests of one attempt that have both: of a later
               attempt the prediction counts from its routing, the figure from the submission. Of rows only.
- percentiles  linear interpolation; TTFT and TPOT over the rows that have them, e2e over completed requests. Without
               rows, from histograms (within 2 %), and the summary is marked `approximate`.
- version      what follows the `@` of the pool.
- instance     of the last attempt, `-` where none was reached; what attempts before it wasted elsewhere is booked there, too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from goodput_accountant.policy.accounting import UNCLASSIFIED, LedgerRow
from goodput_accountant.policy.histograms import Histogram
from goodput_accountant.policy.totals import US_PER_S, Totals
from tokenfleet.contracts.ledger import (
    GroupBy,
    Percentiles,
    Prediction,
    PredictionError,
    Report,
    SortBy,
    Summary,
    WasteFigures,
)
from tokenfleet.contracts.policy import OTHER_POOLS
from tokenfleet.subjects import split_model

S_PER_HOUR = 3600
NO_INSTANCE = "-"
NO_PRICES: Mapping[str, float] = {}

KEYS: dict[GroupBy, Callable[[LedgerRow], str]] = {
    "class": lambda row: row.request_class or UNCLASSIFIED,
    "tenant": lambda row: row.tenant,
    "pool": lambda row: row.pool,
    "site": lambda row: row.site,
    "version": lambda row: split_model(row.pool)[1] or "",
    "model": lambda row: row.model,
    "instance": lambda row: row.instance or NO_INSTANCE,
}
"""What a row is grouped by."""

_SORTED_BY: dict[SortBy, Callable[[Summary], float]] = {
    "goodput": lambda summary: summary.good_output_tokens,
    "waste": lambda summary: summary.wasted_tokens,
    "misses": lambda summary: summary.missed,
    "cost": lambda summary: summary.cost or 0.0,
    "gpu": lambda summary: summary.gpu_s,
}


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How a report is laid out, and what a GPU-hour costs."""

    group_by: GroupBy = "class"
    sort: SortBy | None = None
    limit: int | None = None
    prices: Mapping[str, float] = NO_PRICES
    """By pool; `*` is for all others."""


class Part(msgspec.Struct, frozen=True):
    """A group's totals, and the exact percentiles of TTFT, TPOT and e2e if its rows are at hand."""

    totals: Totals
    percentiles: tuple[Percentiles, Percentiles, Percentiles] | None = None


def build_report(rows: Sequence[LedgerRow], shape: Shape | None = None, *, list_ids: bool = False) -> Report:
    """All rows together, each class and each group apart; `list_ids` adds the client request ids."""
    shape = shape or Shape()
    classes = _parts(rows, "class")
    groups = classes if shape.group_by == "class" else _parts(rows, shape.group_by)
    ids = (row.client_request_id for row in rows) if list_ids else ()
    first_attempts = [row for row in rows if row.attempt == 1]
    total = Part(Totals.sum(part.totals for part in classes.values()), _exact(rows))
    return msgspec.structs.replace(
        report_of(total, classes, groups, shape),
        client_request_ids=tuple(name for name in ids if name is not None),
        prediction=Prediction(
            ttft=_error([(row.predicted_ttft_s, row.ttft_s) for row in first_attempts]),
            tpot=_error([(row.predicted_tpot_s, row.tpot_s) for row in first_attempts]),
        ),
    )


def report_of(total: Part, classes: Mapping[str, Part], groups: Mapping[str, Part], shape: Shape) -> Report:
    """The report of parts: all together, by class, and by what the shape groups by."""
    duration_s = total.totals.duration_s
    ranked, left_out = _ranked(
        {name: summary(part, duration_s, shape.prices) for name, part in groups.items()}, shape
    )
    return Report(
        total=summary(total, duration_s, shape.prices),
        classes={name: summary(part, duration_s, shape.prices) for name, part in sorted(classes.items())},
        group_by=shape.group_by,
        groups=ranked,
        groups_left_out=left_out,
    )


def duration(rows: Iterable[LedgerRow]) -> float:
    """Engine seconds that the rows span; 0 for none."""
    return Totals.of(rows).duration_s


def summarise(rows: Sequence[LedgerRow], duration_s: float) -> Summary:
    """The figures of one group of rows over a duration in engine seconds."""
    return summary(_part(rows), duration_s)


def summary(part: Part, duration_s: float, prices: Mapping[str, float] = NO_PRICES) -> Summary:
    """The figures of one group over a duration in engine seconds."""
    totals = part.totals
    ttft, tpot, e2e = part.percentiles or tuple(map(_approximated, (totals.ttft, totals.tpot, totals.e2e)))
    outcomes = totals.outcomes
    spent = cost(totals, prices)
    good = totals.good_tokens
    return Summary(
        offered=totals.rows,
        completed=outcomes.get("completed", 0),
        rejected=outcomes.get("rejected", 0),
        timed_out=outcomes.get("timed_out", 0),
        cancelled=outcomes.get("cancelled", 0),
        failed=outcomes.get("failed", 0),
        lost=outcomes.get("lost", 0),
        ledger_rows=totals.rows,
        duration_s=duration_s,
        input_tokens=totals.input_tokens,
        computed_tokens=totals.computed_tokens,
        output_tokens=totals.output_tokens,
        good_output_tokens=good,
        neutral_output_tokens=totals.neutral_tokens,
        output_tokens_per_s=totals.output_tokens / duration_s if duration_s else 0.0,
        goodput_tokens_per_s=good / duration_s if duration_s else 0.0,
        wasted_tokens=totals.wasted_tokens,
        waste={
            cause: WasteFigures(
                requests=wasted.requests,
                prefill_tokens=wasted.prefill_tokens,
                decode_tokens=wasted.decode_tokens,
                gpu_s=wasted.gpu_us / US_PER_S,
            )
            for cause, wasted in sorted(totals.waste.items())
        },
        met=totals.met,
        missed=totals.judged - totals.met,
        missed_terms=dict(sorted(totals.missed_terms.items())),
        undeclared=totals.undeclared,
        undeclared_output_tokens=totals.undeclared_output_tokens,
        attainment_offered=_share(totals.met, totals.judged),
        attainment_admitted=_share(totals.met_admitted, totals.judged_admitted),
        prefix_reuse=_share(totals.answered_reused_tokens, totals.answered_input_tokens),
        degraded=totals.degraded,
        gpu_s=sum(totals.gpu_us.values()) / US_PER_S,
        gpu_unknown=totals.gpu_unknown,
        cost=spent,
        cost_per_million_good_tokens=spent / good * 1e6 if spent is not None and good else None,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        approximate=part.percentiles is None,
    )


def cost(totals: Totals, prices: Mapping[str, float]) -> float | None:
    """What the GPU-seconds of all pools cost; None without prices, or if a pool among them has none."""
    if not prices:
        return None
    spent = 0.0
    for pool, gpu_us in totals.gpu_us.items():
        price = prices.get(pool, prices.get(OTHER_POOLS))
        if price is None:
            return None
        spent += gpu_us / US_PER_S / S_PER_HOUR * price
    return None if not totals.gpu_us and totals.gpu_unknown else spent


def _parts(rows: Iterable[LedgerRow], group_by: GroupBy) -> dict[str, Part]:
    key = KEYS[group_by]
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {name: _part(group) for name, group in groups.items()}


def _part(rows: Sequence[LedgerRow]) -> Part:
    return Part(Totals.of(rows), _exact(rows))


def _exact(rows: Sequence[LedgerRow]) -> tuple[Percentiles, Percentiles, Percentiles]:
    return (
        _percentiles([row.ttft_s for row in rows if row.ttft_s is not None]),
        _percentiles([row.tpot_s for row in rows if row.tpot_s is not None]),
        _percentiles([row.e2e_s for row in rows if row.outcome == "completed"]),
    )


def _ranked(groups: dict[str, Summary], shape: Shape) -> tuple[dict[str, Summary], int]:
    """The groups in the order asked for, as many as are asked for, and how many are left out."""
    names = sorted(groups)
    if shape.sort is not None:
        size = _SORTED_BY[shape.sort]
        names.sort(key=lambda name: size(groups[name]), reverse=True)
    kept = names[: shape.limit]
    return {name: groups[name] for name in kept}, len(names) - len(kept)


def _error(pairs: Iterable[tuple[float | None, float | None]]) -> PredictionError:
    """Of pairs of a prediction and what it turned out to be."""
    errors = [abs(guess - actual) / actual for guess, actual in pairs if guess is not None and actual]
    if not errors:
        return PredictionError()
    median, p90 = (float(value) for value in np.percentile(errors, (50, 90)))
    return PredictionError(n=len(errors), median_ape=median, p90_ape=p90)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return Percentiles()
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return Percentiles(p50=p50, p95=p95, p99=p99)


def _approximated(histogram: Histogram) -> Percentiles:
    return Percentiles(
        p50=histogram.percentile(50), p95=histogram.percentile(95), p99=histogram.percentile(99)
    )
