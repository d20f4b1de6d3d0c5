"""Forecasts are judged by what came."""

import numpy as np
import pytest

from lab.errors import TraceError
from lab.planning.forecast_errors import ForecastErrors, Made, judged
from lab.planning.trace_errors import AHEAD, asked_work, trace_errors
from lab.traces.model import Trace, TraceRequest


def test_errors_are_weighted_by_what_came_and_counted_above_the_upper_bound() -> None:
    made = [Made(1, 0, expected=8.0, upper=9.0, now=5.0), Made(2, 0, expected=12.0, upper=13.0, now=10.0)]
    came = np.array([[5.0], [10.0], [10.0]])
    assert judged(made, came) == ForecastErrors(judged=2, error=0.2, naive_error=0.25, above_upper=0.5)


def test_without_forecasts_or_work_there_is_no_error() -> None:
    assert judged([], np.zeros((1, 1))) == ForecastErrors(
        judged=0, error=None, naive_error=None, above_upper=None
    )
    nothing = judged([Made(0, 0, expected=0.0, upper=0.0, now=0.0)], np.zeros((1, 1)))
    assert nothing.error is None and nothing.above_upper == 0.0


def regular(requests: int, every_s: float = 1.0) -> Trace:
    return Trace(
        source="regular",
        format="test",
        requests=[
            TraceRequest(arrival_s=number * every_s, input_tokens=1_000, output_tokens=100, block_ids=(1, 2))
            for number in range(requests)
        ],
    )


def test_the_same_work_in_every_interval_is_forecast_without_error() -> None:
    errors = trace_errors(regular(400), interval_s=10.0)
    assert list(errors) == list(AHEAD)
    for ahead, one in errors.items():
        assert one.judged == 39 - ahead
        assert one.error == pytest.approx(0.0, abs=1e-6) and one.above_upper == 0.0


def test_an_interval_that_is_not_whole_is_left_out() -> None:
    works = asked_work(regular(25), interval_s=10.0)
    assert len(works) == 2 and works[0] == pytest.approx(works[1]) and works[0] > 0


def test_a_trace_too_short_for_its_intervals_says_what_to_do() -> None:
    with pytest.raises(TraceError, match="shorter --interval"):
        trace_errors(regular(100), interval_s=10.0)
