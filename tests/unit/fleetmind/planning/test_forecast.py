"""Forecasts of work: what is expected, how high it may come, and how far off that was."""

import math
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmind.policy.planning.forecast import Series, SeriesState

DAY = 1440
"""Intervals."""
HORIZON_S = 360.0


def fed(works: list[float], first: int = 0) -> Series:
    series = Series()
    for number, work in enumerate(works, first):
        assert series.add(60.0 * number, work)
        series.ahead(HORIZON_S)
    return series


def days(count: float, seed: int = 1, mean: float = 4.0) -> list[float]:
    """Days with a season, noise of each minute, and nothing else."""
    rng = Random(seed)
    steps = range(round(count * DAY))
    return [mean * (1 + 0.6 * math.sin(2 * math.pi * step / DAY)) * rng.gauss(1, 0.1) for step in steps]


def test_of_what_nothing_is_known_nothing_is_expected():
    forecast = Series().ahead(HORIZON_S)
    assert (forecast.expected, forecast.upper, forecast.error, forecast.form) == (0.0, 0.0, None, "unknown")


def test_steady_work_is_expected_to_stay_and_its_bound_comes_down_to_it():
    first, later = fed([2.0]).ahead(HORIZON_S), fed([2.0] * 300).ahead(HORIZON_S)
    assert first.expected == later.expected == pytest.approx(2.0)
    assert first.upper > 2.5 and later.upper == pytest.approx(2.0, abs=0.01)
    assert first.error is None and later.error == pytest.approx(0.0, abs=1e-9)


def test_work_that_rises_steadily_is_expected_to_rise_on():
    rng = Random(1)
    forecast = fed([1.0 + 0.02 * number + rng.gauss(0, 0.2) for number in range(300)]).ahead(HORIZON_S)
    assert forecast.form == "trend"
    assert forecast.expected == pytest.approx(1.0 + 0.02 * 305, rel=0.03)
    assert forecast.error < forecast.naive_error


def test_after_a_day_the_season_is_known_and_forecasts_are_less_off_than_as_now():
    series = fed(days(3))
    forecast = series.ahead(HORIZON_S)
    assert forecast.error < 0.85 * forecast.naive_error
    # An hour ahead the season says most: the day's mean work rises fastest at this hour.
    for number, work in enumerate(days(1, seed=9), 3 * DAY):
        series.add(60.0 * number, work)
        series.ahead(3_600.0)
    far = series.ahead(3_600.0)
    assert far.form == "season"
    assert far.error < 0.8 * far.naive_error


@pytest.mark.parametrize("seed", range(3))
def test_nine_in_ten_stay_below_the_upper_bound(seed: int):
    works, series, above = days(2, seed), Series(), 0
    bounds: dict[int, float] = {}
    for number, work in enumerate(works):
        series.add(60.0 * number, work)
        above += work > bounds.get(number, math.inf)
        bounds[number + 6] = series.ahead(HORIZON_S).upper
    assert above / len(works) == pytest.approx(0.1, abs=0.02)


def test_what_is_repeated_or_late_does_not_count():
    series = fed([1.0, 2.0, 3.0])
    before = msgspec.json.encode(series.state)
    assert not series.add(120.0, 9.0) and not series.add(60.0, 9.0)
    assert msgspec.json.encode(series.state) == before


def test_a_gap_is_unknown_and_not_zero():
    series = fed([2.0] * 60)
    assert series.add(60.0 * 90, 2.0)
    assert series.ahead(HORIZON_S).expected == pytest.approx(2.0)
    assert series.ahead(HORIZON_S).error == pytest.approx(0.0, abs=1e-9)


def test_a_series_goes_on_where_another_process_left_it():
    works = days(1.5)
    series = fed(works)
    kept = Series(msgspec.json.decode(msgspec.json.encode(series.state), type=SeriesState))
    for number, work in enumerate(days(0.1, seed=5), len(works)):
        assert series.add(60.0 * number, work) == kept.add(60.0 * number, work)
        assert series.ahead(HORIZON_S) == kept.ahead(HORIZON_S)


def test_what_is_kept_of_a_series_stays_small():
    assert len(msgspec.json.encode(fed(days(2)).state)) < 10_000


def test_a_horizon_that_nobody_asks_for_any_more_is_forgotten():
    series = fed([1.0])
    for number in range(1, DAY + 3):
        series.add(60.0 * number, 1.0)
    assert not series.state.horizons


@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1e4)), max_size=40),
    st.floats(1, 7_200),
)
def test_whatever_comes_a_forecast_is_finite_and_its_bound_is_not_below_it(
    told: list[tuple[int, float]], horizon_s: float
):
    series = Series()
    for number, work in told:
        series.add(60.0 * number, work)
        forecast = series.ahead(horizon_s)
        assert 0 <= forecast.expected <= forecast.upper < math.inf
