"""How much work one model will be asked for at one entry, learned from what it was asked for. Pure.

Simple forms are weighted by how well each did at the same horizon of late: no form is best for all traffic (measured in
`docs/adr/0016-long-loop.md`). The upper bound is a quantile tracked online: whenever what came was above it, it rises by nine
parts, else it falls by one, so that nine in ten stay below whatever the errors look like (adaptive conformal inference, Gibbs and
Candès 2021).
"""

from math import ceil, sqrt

import msgspec

from fleetmind.policy.planning.forms import DAY_S, Level, Season, Trend, weight

INTERVAL_S = 60.0
FIRST_MARGIN = 0.5
"""How far above the expected work the bound is, in parts of it, while no error is known."""
ERROR_MEMORY = 120.0
"""Time constant, in intervals, of the errors that forms are weighted by, and of the spread."""
POWER = 4
"""A form with twice the error of another has 1/16 of its weight."""
QUANTILE, STEP = 0.9, 0.6
"""Of the upper bound; and by how many spreads ten misses in a row would raise it, per tenth of a miss."""
FIRST_FACTOR = 1.6
"""Spreads (mean absolute errors) from the expected work to the P90 of a normal distribution."""
REPORTED_S = DAY_S
"""Time constant of the errors that are reported. A horizon that was not asked for during it is forgotten."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Of the interval that begins `horizon_s` after the latest one known."""

    horizon_s: float
    expected: float
    upper: float
    """Nine in ten times it is no more than this, by what came at this horizon before."""
    error: float | None
    """Weighted absolute percentage error at this horizon so far (0.2: 20 %); None: nothing to compare yet."""
    naive_error: float | None
    """The same of a forecast that says `as now`."""
    form: str
    """What weighs most in it: `now`, `level`, `trend` or `season`; `unknown` before anything was added."""


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast whose interval has not come yet."""

    interval: int
    by_form: dict[str, float]
    expected: float
    upper: float


class Horizon(msgspec.Struct, kw_only=True):
    """How forecasts did at one horizon."""

    asked: int
    """The interval in which it was last asked for."""
    pending: list[Pending] = []
    count: int = 0
    by_form: dict[str, float] = {}
    """Absolute error of each form, weighted."""
    spread: float = 0.0
    """Absolute error in parts of the square root of what was expected, weighted: noise of arrivals grows like that."""
    factor: float = FIRST_FACTOR
    """Spreads from the expected work to the upper bound."""
    error: float = 0.0
    """Absolute error of what was forecast, weighted over a day,"""
    naive_error: float = 0.0
    """that of `as now`,"""
    work: float = 0.0
    """and the work."""


class SeriesState(msgspec.Struct, kw_only=True):
    """All that a series has learned: plain values, to be kept and restored."""

    interval_s: float = INTERVAL_S
    latest: int | None = None
    """The latest interval known, counted from the epoch."""
    now: float = 0.0
    """Its work."""
    level: Level = msgspec.field(default_factory=Level)
    trend: Trend = msgspec.field(default_factory=Trend)
    season: Season = msgspec.field(default_factory=Season)
    horizons: dict[int, Horizon] = {}
    """By how many intervals they are ahead."""


class Series:
    """Work of one model at one entry, interval by interval.

    Args:
        state: what `state` was when it was kept; None: nothing is known.
    """

    def __init__(self, state: SeriesState | None = None) -> None:
        self.state = state or SeriesState()
        """Changes as intervals are added: encode it to keep it."""

    def add(self, interval_start_unix_s: float, work: float) -> bool:
        """An interval is over. Those that were left out are unknown, not zero.

        Args:
            interval_start_unix_s: when it began; rounded to the nearest whole interval.
            work: asked for in it, engine seconds per second.

        Returns:
            Whether it counted: what is repeated, or comes after a later one, does not.
        """
        state = self.state
        interval = round(interval_start_unix_s / state.interval_s)
        if state.latest is not None and interval <= state.latest:
            return False
        missed = 0 if state.latest is None else interval - state.latest - 1
        for horizon in state.horizons.values():
            _compare(horizon, interval, work)
        state.latest, state.now = interval, work
        state.level.add(work)
        state.trend.add(work, missed)
        state.season.add(interval * state.interval_s, work)
        remembered = REPORTED_S / state.interval_s
        state.horizons = {
            steps: one for steps, one in state.horizons.items() if interval - one.asked <= remembered
        }
        for steps, horizon in state.horizons.items():
            horizon.pending.append(self._forecast(steps, horizon))
        return True

    def ahead(self, horizon_s: float) -> Forecast:
        """What is expected so far ahead. Errors at a horizon are measured from when it was first asked for.

        Args:
            horizon_s: rounded up to whole intervals, at least one.
        """
        state = self.state
        if state.latest is None:
            return Forecast(
                horizon_s=horizon_s, expected=0.0, upper=0.0, error=None, naive_error=None, form="unknown"
            )
        steps = max(1, ceil(horizon_s / state.interval_s - 1e-9))
        horizon = state.horizons.get(steps)
        if horizon is None:
            horizon = state.horizons[steps] = Horizon(asked=state.latest)
            horizon.pending.append(self._forecast(steps, horizon))
        horizon.asked = state.latest
        made = horizon.pending[-1]
        weights = _weights(made.by_form, horizon)
        return Forecast(
            horizon_s=steps * state.interval_s,
            expected=made.expected,
            upper=made.upper,
            error=horizon.error / horizon.work if horizon.work > 0 else None,
            naive_error=horizon.naive_error / horizon.work if horizon.work > 0 else None,
            form=max(weights, key=lambda form: weights[form]),
        )

    def _forecast(self, steps: int, horizon: Horizon) -> Pending:
        state = self.state
        assert state.latest is not None
        by_form = {"now": state.now, "level": state.level.value, "trend": state.trend.ahead(steps)}
        seasonal = state.season.ahead(state.latest * state.interval_s, steps * state.interval_s)
        if seasonal is not None:
            by_form["season"] = seasonal
        weights = _weights(by_form, horizon)
        expected = sum(weights[form] * by_form[form] for form in weights) / sum(weights.values())
        margin = FIRST_MARGIN * expected
        if horizon.count:
            margin = horizon.factor * horizon.spread * sqrt(expected)
        return Pending(
            interval=state.latest + steps, by_form=by_form, expected=expected, upper=expected + margin
        )


def _weights(by_form: dict[str, float], horizon: Horizon) -> dict[str, float]:
    """Of the forms whose error is known, relative to the best one; of the level alone while none is."""
    errors = {form: horizon.by_form[form] for form in by_form if form in horizon.by_form}
    if not errors:
        return {"level": 1.0}
    least = min(errors.values())
    return {form: ((least + 1e-9) / (error + 1e-9)) ** POWER for form, error in errors.items()}


def _compare(horizon: Horizon, interval: int, work: float) -> None:
    """An interval's work became known: what was forecast of it is judged, and older forecasts are dropped."""
    due = [one for one in horizon.pending if one.interval == interval]
    horizon.pending = [one for one in horizon.pending if one.interval > interval]
    for made in due:
        horizon.count += 1
        share = weight(ERROR_MEMORY, horizon.count)
        for form, forecast in made.by_form.items():
            error = abs(work - forecast)
            before = horizon.by_form.get(form)
            horizon.by_form[form] = error if before is None else before + share * (error - before)
        error = abs(work - made.expected)
        horizon.spread += share * (error / sqrt(max(made.expected, 1e-9)) - horizon.spread)
        miss = float(work > made.upper)
        horizon.factor = max(0.0, horizon.factor + STEP * 0.1 * (miss - (1.0 - QUANTILE)))
        day = weight(1440.0, horizon.count)
        horizon.error += day * (error - horizon.error)
        horizon.naive_error += day * (abs(work - made.by_form["now"]) - horizon.naive_error)
        horizon.work += day * (work - horizon.work)
