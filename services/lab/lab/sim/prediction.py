"""How right a policy's predictions of latency were.

Of the requests that have both the prediction and the figure: the absolute error as a share of the figure (APE), its
median and its 90th percentile, over all of them and over those that arrived after the first 500, by when a policy
that learns should have. Covered is the share of requests whose figure is at most the predicted median, or at most the
predicted P90: 50 % and 90 % where these are what they say.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lab.sim.api import Outcome
from lab.sim.lengths import LENGTHS, length_class

WARM_UP = 500
"""Requests, in order of arrival, that a policy may learn from before it is judged."""

Floats = npt.NDArray[np.float64]


class Compared(NamedTuple):
    """One request's figure and what was predicted of it, in seconds."""

    number: int
    """In order of arrival."""
    input_tokens: int
    actual_s: float
    median_s: float
    p90_s: float | None


def prediction_figures(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """The errors of `ttft` and `tpot`, each over all requests and per input length; None if nothing was predicted.

    Args:
        outcomes: of every request, in order of arrival.
    """
    ttft = [
        Compared(number, _input_tokens(one), one.ttft_s, one.predicted_ttft_s, one.predicted_ttft_p90_s)
        for number, one in enumerate(outcomes)
        if one.ttft_s is not None and one.predicted_ttft_s is not None
    ]
    tpot = [
        Compared(number, _input_tokens(one), one.tpot_s, one.predicted_tpot_s, one.predicted_tpot_p90_s)
        for number, one in enumerate(outcomes)
        if one.tpot_s is not None and one.predicted_tpot_s is not None
    ]
    if not ttft and not tpot:
        return None
    return {"ttft": _with_lengths(ttft), "tpot": _with_lengths(tpot)}


def _with_lengths(compared: Sequence[Compared]) -> dict[str, Any]:
    lengths = {name: [one for one in compared if length_class(one.input_tokens) == name] for name in LENGTHS}
    of_lengths = {name: _errors(group) for name, group in lengths.items() if group}
    return {**_errors(compared), "input_lengths": of_lengths}


def _errors(compared: Sequence[Compared]) -> dict[str, float | int | None]:
    after = [one for one in compared if one.number >= WARM_UP]
    with_p90 = [one for one in compared if one.p90_s is not None]
    errors, errors_after = _ape(compared), _ape(after)
    return {
        "n": len(compared),
        "median_ape": _percentile(errors, 50),
        "p90_ape": _percentile(errors, 90),
        "n_after_500": len(after),
        "median_ape_after_500": _percentile(errors_after, 50),
        "p90_ape_after_500": _percentile(errors_after, 90),
        "covered_p50": _share([one.actual_s <= one.median_s for one in compared]),
        "covered_p90": _share([one.p90_s is not None and one.actual_s <= one.p90_s for one in with_p90]),
    }


def _ape(compared: Sequence[Compared]) -> Floats:
    actual = np.array([one.actual_s for one in compared], dtype=float)
    predicted = np.array([one.median_s for one in compared], dtype=float)
    some = actual > 0
    return np.abs(predicted[some] - actual[some]) / actual[some]


def _percentile(values: Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _share(verdicts: Sequence[bool]) -> float | None:
    return sum(verdicts) / len(verdicts) if verdicts else None


def _input_tokens(outcome: Outcome) -> int:
    return outcome.arrival.spec.input_tokens
