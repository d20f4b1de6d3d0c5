"""The forecast's errors on the arrivals of a real trace, over its own hour.

A trace of an hour has no days and too few minutes to scale by, and stretched or repeated it would be no real one any
more. So it is cut into shorter intervals, and only forecasts are judged.
"""

import numpy as np

from fleetmind.policy.planning.forecast import Series, SeriesState
from lab.errors import TraceError
from lab.planning.forecast_errors import ForecastErrors, Made, judged
from lab.planning.offered import Floats
from lab.traces.model import Trace, TraceRequest
from tokenfleet.engine.gpu_time import decode_gpu_s, prefill_gpu_s
from tokenfleet.engine.profile import LLAMA70B_TP4_H100

AHEAD = (1, 6, 15)
"""Intervals. Six is what the long loop looks ahead: a warm-up of five, and one until the next plan."""


def trace_errors(trace: Trace, interval_s: float) -> dict[int, ForecastErrors]:
    """By how many intervals ahead.

    Args:
        trace: its arrivals.
        interval_s: of the series that is forecast.

    Raises:
        TraceError: it is too short for a forecast so far ahead.
    """
    works = asked_work(trace, interval_s)
    if len(works) <= max(AHEAD):
        raise TraceError(
            trace.source,
            f"{len(works)} whole intervals of {interval_s:g} s: forecasts look {max(AHEAD)} ahead. Choose a shorter --interval",
        )
    series = Series(SeriesState(interval_s=interval_s))
    made: dict[int, list[Made]] = {ahead: [] for ahead in AHEAD}
    for interval, work in enumerate(works.tolist()):
        series.add(interval * interval_s, work)
        for ahead, forecasts in made.items():
            forecast = series.ahead(ahead * interval_s)
            if interval + ahead < len(works):
                forecasts.append(Made(interval + ahead, 0, forecast.expected, forecast.upper, work))
    return {ahead: judged(forecasts, works[:, None]) for ahead, forecasts in made.items()}


def asked_work(trace: Trace, interval_s: float) -> Floats:
    """Engine seconds per second that arrive in each whole interval, on the reference engine with nothing cached."""
    requests = list(trace.requests)
    arrivals = np.array([request.arrival_s for request in requests])
    whole = int(arrivals.max(initial=0.0) // interval_s)
    works = np.array([_engine_s(request) for request in requests])
    intervals = (arrivals // interval_s).astype(np.int64)
    return np.bincount(intervals, works, whole + 1)[:whole] / interval_s


def _engine_s(request: TraceRequest) -> float:
    profile = LLAMA70B_TP4_H100
    prefill = prefill_gpu_s(profile, request.input_tokens, 0)
    return (prefill + decode_gpu_s(profile, request.output_tokens, request.input_tokens)) / profile.gpus
