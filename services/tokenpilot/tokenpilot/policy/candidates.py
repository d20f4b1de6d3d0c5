"""What a decision's event tells of the instances there were, for `tokenfleet explain`. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tokenfleet.contracts.fleet import IndexQuality
from tokenfleet.contracts.requests import Candidate
from tokenfleet.load import Predictions
from tokenfleet.load.table import Floats
from tokenpilot.policy.cost import Costs
from tokenpilot.policy.roster import Roster

SHOWN = 8
"""Candidates kept in the event, best first, and as many of those that could not take the request."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What was worked out, by position in the roster."""

    roster: Roster
    predictions: Predictions
    reused_tokens: Floats
    offloaded_tokens: Floats
    costs: Costs


def candidates(
    scores: Scores,
    picked: int,
    filtered: Mapping[str, str],
    quality: Callable[[str], IndexQuality | None],
    wall_s: float | None,
) -> tuple[Candidate, ...]:
    """The chosen instance, the next best, and some of those filtered with their reasons.

    Args:
        scores: of the usable instances.
        picked: position of the chosen one.
        filtered: why each of the others cannot take the request.
        quality: how far to trust what is known of an instance's cache.
        wall_s: the fleet view's clock, to tell how old telemetry is.
    """
    order = np.argsort(scores.costs.cost_s, kind="stable")
    shown = np.concatenate([[picked], order[order != picked][: SHOWN - 1]]).astype(np.intp)
    costs, predictions = scores.costs, scores.predictions
    cost_s, ttft_s, tpot_s = (
        _rounded(each[shown]) for each in (costs.cost_s, costs.ttft_s, predictions.tpot_s)
    )
    backlog_s, kv_wait_s = _rounded(predictions.backlog_s[shown]), _rounded(costs.kv_wait_s[shown])
    own_s, misses = _rounded(predictions.own_prefill_s[shown]), _rounded(costs.expected_misses[shown])
    told: list[Candidate] = []
    for row, position in enumerate(shown.tolist()):
        view = scores.roster.instances[int(position)]
        state = view.state
        age_s = None if wall_s is None else view.age_s(wall_s)
        told.append(
            Candidate(
                instance=view.record.instance,
                cost_s=cost_s[row],
                predicted_ttft_s=ttft_s[row],
                predicted_tpot_s=tpot_s[row],
                backlog_s=backlog_s[row],
                kv_wait_s=kv_wait_s[row],
                own_prefill_s=own_s[row],
                expected_misses=misses[row],
                reused_tokens=int(scores.reused_tokens[position]),
                offloaded_tokens=int(scores.offloaded_tokens[position]),
                decoding=int(predictions.instances.decoding[position]),
                pending=int(predictions.instances.pending[position]),
                running=(state.running or 0) if state else 0,
                waiting=(state.waiting or 0) if state else 0,
                kv_usage=state.kv_usage if state else None,
                telemetry_age_s=None if age_s is None else round(age_s, 3),
                index=quality(view.record.instance),
            )
        )
    out = (Candidate(instance=name, filtered=reason) for name, reason in list(filtered.items())[:SHOWN])
    return (*told, *out)


def _rounded(values: Floats) -> list[float | None]:
    """To 10 microseconds, which keeps events short; None for what was not worked out."""
    return [None if value != value else value for value in np.round(values, 5).tolist()]
