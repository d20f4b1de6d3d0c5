"""Ledger rows added up.

- goodput      output tokens of good requests / duration; output tokens/s likewise, over all requests.
- duration     engine seconds from the first submission to the last end: `(last end - first submitted) *
               time_scale`. Rows of different time scales share no time axis: their durations are added. A
               class is measured over the duration of the whole report, so that the classes add up to it.
- attainment   met / judged, where judged rows are all those with `met` True or False (see `accounting`):
               rejected, timed out and failed requests with an objective stay in the denominator. "Offered" is
               over all rows, "admitted" over those that were admitted.
- prefix reuse reused / input tokens of requests whose answer began.
- prediction   absolute error as a share of the figure, over requests of one attempt that have both: of a later
               attempt the prediction counts from its routing, the figure from the submission.
- percentiles  linear interpolation; TTFT and TPOT over the rows that have them, e2e over completed requests.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from goodput_accountant.policy.accounting import UNCLASSIFIED, LedgerRow
from tokenfleet.contracts.ledger import Percentiles, Prediction, PredictionError, Report, Summary


def build_report(rows: Sequence[LedgerRow], *, list_ids: bool = False) -> Report:
    """All rows together and each class apart; `list_ids` adds the client request ids."""
    duration_s = duration(rows)
    classes: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        classes[row.request_class or UNCLASSIFIED].append(row)
    ids = (row.client_request_id for row in rows) if list_ids else ()
    return Report(
        total=summarise(rows, duration_s),
        classes={name: summarise(group, duration_s) for name, group in sorted(classes.items())},
        client_request_ids=tuple(name for name in ids if name is not None),
        prediction=Prediction(
            ttft=_error([(row.predicted_ttft_s, row.ttft_s) for row in rows if row.attempt == 1]),
            tpot=_error([(row.predicted_tpot_s, row.tpot_s) for row in rows if row.attempt == 1]),
        ),
    )


def duration(rows: Iterable[LedgerRow]) -> float:
    """Engine seconds that the rows span; 0 for none."""
    spans: dict[float, tuple[int, int]] = {}
    for row in rows:
        first, last = spans.get(row.time_scale, (row.submitted_ns, row.ended_ns))
        spans[row.time_scale] = min(first, row.submitted_ns), max(last, row.ended_ns)
    return sum(max(last - first, 0) / 1e9 * scale for scale, (first, last) in spans.items())


def summarise(rows: Sequence[LedgerRow], duration_s: float) -> Summary:
    """The figures of one group of rows over a duration in engine seconds."""
    outcomes = Counter(row.outcome for row in rows)
    answered = [row for row in rows if row.answered]
    output_tokens = sum(row.output_tokens for row in rows)
    good_tokens = sum(row.good_output_tokens for row in rows)
    return Summary(
        offered=len(rows),
        completed=outcomes["completed"],
        rejected=outcomes["rejected"],
        timed_out=outcomes["timed_out"],
        cancelled=outcomes["cancelled"],
        failed=outcomes["failed"],
        ledger_rows=len(rows),
        duration_s=duration_s,
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration_s if duration_s else 0.0,
        goodput_tokens_per_s=good_tokens / duration_s if duration_s else 0.0,
        wasted_tokens=sum(row.wasted_tokens for row in rows),
        attainment_offered=_attainment(rows),
        attainment_admitted=_attainment([row for row in rows if row.admitted]),
        prefix_reuse=_share(
            sum(row.reused_tokens for row in answered), sum(row.input_tokens for row in answered)
        ),
        degraded=sum(row.degraded for row in rows),
        ttft_s=_percentiles([row.ttft_s for row in rows if row.ttft_s is not None]),
        tpot_s=_percentiles([row.tpot_s for row in rows if row.tpot_s is not None]),
        e2e_s=_percentiles([row.e2e_s for row in rows if row.outcome == "completed"]),
    )


def _error(pairs: Iterable[tuple[float | None, float | None]]) -> PredictionError:
    """Of pairs of a prediction and what it turned out to be."""
    errors = [abs(guess - actual) / actual for guess, actual in pairs if guess is not None and actual]
    if not errors:
        return PredictionError()
    median, p90 = (float(value) for value in np.percentile(errors, (50, 90)))
    return PredictionError(n=len(errors), median_ape=median, p90_ape=p90)


def _attainment(rows: Sequence[LedgerRow]) -> float | None:
    verdicts = [row.met for row in rows if row.met is not None]
    return _share(sum(verdicts), len(verdicts))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return Percentiles()
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return Percentiles(p50=p50, p95=p95, p99=p99)
