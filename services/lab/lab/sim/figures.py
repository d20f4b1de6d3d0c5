"""The figures of a run, from the rules that make the ledger's."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import msgspec
import numpy as np

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.report import build_report, duration
from lab.replay.report import report_json
from lab.sim.api import Outcome
from lab.sim.batch import batch_figures
from lab.sim.cluster import MODEL, VERSION
from lab.sim.groups import (
    REASONS,
    by_class,
    by_input_length,
    by_tenant,
    figures_of,
    rejected_by_reason,
    starved_s,
)
from lab.sim.prediction import WARM_UP, prediction_figures
from lab.sim.simulator import Result
from lab.sim.steadiness import steadiness
from slomax.policy.classify import classify, objective_for
from tokenfleet.contracts import requests as contracts
from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.contracts.policy import Policy
from tokenfleet.contracts.requests import Ended, terminal_event_id

POINTS = 200
"""At most this many points in a series."""


def ended(outcome: Outcome, policy: Policy) -> Ended:
    """The terminal fact that ingress would have published; the epoch is the start of the run."""
    arrival = outcome.arrival
    spec = arrival.spec
    request_class, _ = classify(spec, policy)
    return Ended(
        event_id=terminal_event_id(arrival.request_id),
        request_id=arrival.request_id,
        attempt=outcome.attempt,
        tenant=arrival.tenant,
        pool=f"{MODEL}@{spec.version or VERSION}",
        site=outcome.site or spec.entry_site,
        time_ns=_ns(outcome.ended_s),
        request_class=request_class,
        outcome=cast(contracts.Outcome, outcome.outcome),
        reason=outcome.reason,
        status=outcome.status,
        model=spec.model,
        stream=spec.stream,
        submitted_ns=_ns(arrival.time_s),
        e2e_s=max(0.0, outcome.ended_s - arrival.time_s),
        admitted=outcome.instance is not None or outcome.attempt > 1,
        instance=outcome.instance,
        objective=objective_for(request_class, spec, policy),
        input_tokens=spec.input_tokens,
        reused_tokens=outcome.reused_tokens,
        output_tokens=outcome.output_tokens,
        ttft_s=outcome.ttft_s,
        tpot_s=outcome.tpot_s,
        predicted_ttft_s=outcome.predicted_ttft_s,
        predicted_tpot_s=outcome.predicted_tpot_s,
        retried_input_tokens=outcome.retried_input_tokens,
    )


def ledger_rows(outcomes: Sequence[Outcome], policy: Policy) -> list[LedgerRow]:
    """One ledger row per outcome."""
    return [account(ended(outcome, policy)) for outcome in outcomes]


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at in a run, beyond what every run shows."""

    profiles: dict[str, EngineProfile] = {}
    """Of the engines, by instance: what batch lines got is measured by them."""
    flooding: str | None = None
    """A tenant whose requests say nothing about how the others fare."""
    steps_s: tuple[float, ...] = ()
    """When the load changed."""


NOTHING_MORE = Observed()


def policy_figures(result: Result, policy: Policy, observed: Observed = NOTHING_MORE) -> dict[str, Any]:
    """The keys of `tokenfleet replay --json`, more of the same per group, and the series to plot.

    `prediction` says more here than a replay does; `after_500` leaves out the first 500 requests to arrive.
    """
    rows = ledger_rows(result.outcomes, policy)
    duration_s = duration(rows)
    report = report_json(build_report(rows))
    classes = by_class(rows)
    figures: dict[str, Any] = {
        **report,
        REASONS: rejected_by_reason(rows),
        "classes": {name: {**summary, **classes[name]} for name, summary in report["classes"].items()},
        "tenants": by_tenant(rows, duration_s),
        "input_lengths": by_input_length(rows, duration_s),
        "starved_s": starved_s(rows),
        "residency_violations": result.residency_violations,
        "prediction": prediction_figures(result.outcomes),
        "after_500": figures_of(rows[WARM_UP:], duration_s),
        "steadiness": steadiness(result.adjustments, observed.steps_s),
        "series": {
            "ttft_cdf": cdf([row.ttft_s for row in rows if row.ttft_s is not None]),
            "goodput_over_time": _goodput_over_time(rows),
            "queue_length_over_time": _thinned(result.mean_waiting),
            "per_instance_load": result.busy_share,
            "adjustments": result.adjustments,
        },
    }
    if batch := batch_figures(result.outcomes, observed.profiles):
        figures["batch"] = batch
    if observed.flooding is not None:
        figures["others"] = figures_of([row for row in rows if row.tenant != observed.flooding], duration_s)
    return figures


def cdf(values: Sequence[float]) -> list[tuple[float, float]]:
    """`(value, share of values at or below it)`."""
    if not values:
        return []
    shares = np.linspace(0.0, 1.0, min(POINTS, len(values)))
    points = np.quantile(values, shares)
    return [(float(point), float(share)) for point, share in zip(points, shares, strict=True)]


def spread(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over runs, with the least and the greatest of each figure under `min` and `max`."""
    return {
        **_combined(runs, lambda values: float(np.median(values))),
        "min": _combined(runs, min),
        "max": _combined(runs, max),
    }


def _combined(runs: Sequence[Mapping[str, Any]], combine: Any) -> dict[str, Any]:
    """Objects of one shape made into one, figure by figure; None where no run has the figure."""
    combined: dict[str, Any] = {}
    for key in dict.fromkeys(key for run in runs for key in run):
        values = [run[key] for run in runs if run.get(key) is not None]
        if key == REASONS:
            reasons = {reason for one in values for reason in one}
            combined[key] = {
                reason: combine([one.get(reason, 0) for one in values]) for reason in sorted(reasons)
            }
        elif values and isinstance(values[0], Mapping):
            combined[key] = _combined(values, combine)
        else:
            figure = combine(values) if values else None
            whole = bool(values) and all(isinstance(value, int) for value in values)
            combined[key] = int(figure) if figure is not None and whole and figure == int(figure) else figure
    return combined


def _goodput_over_time(rows: Sequence[LedgerRow]) -> list[tuple[float, float]]:
    if not rows:
        return []
    ends = np.array([row.ended_ns for row in rows]) / 1e9
    good = np.array([row.good_output_tokens for row in rows], dtype=float)
    edges = np.linspace(0.0, max(float(ends.max()), 1e-9), POINTS // 2 + 1)
    tokens, _ = np.histogram(ends, bins=edges, weights=good)
    return [
        (float(start), float(count / (end - start)))
        for (start, end), count in zip(pairwise(edges), tokens, strict=True)
    ]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Neighbours averaged until at most `POINTS` are left."""
    step = -(-len(points) // POINTS) or 1
    return [
        (points[start][0], float(np.mean([value for _, value in points[start : start + step]])))
        for start in range(0, len(points), step)
    ]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
