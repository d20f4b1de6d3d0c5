"""How far forecasts were off, judged by what came, beside saying `as now`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from lab.planning.offered import Floats


@dataclass(frozen=True, slots=True)
class Made:
    """One forecast, of an interval of one series."""

    interval: int
    series: int
    expected: float
    upper: float
    now: float
    """What the latest interval was when it was made."""


class ForecastErrors(msgspec.Struct, frozen=True, kw_only=True):
    """None: nothing was forecast, or nothing came."""

    judged: int
    error: float | None
    """Weighted absolute percentage error: all that was missed or too much, by all that came. 0.2 is 20 %."""
    naive_error: float | None
    """The same of saying `as now`."""
    above_upper: float | None
    """Share of intervals in which more came than the upper bound: a tenth, if it is calibrated."""


def judged(made: Iterable[Made], came: Floats) -> ForecastErrors:
    """All forecasts together.

    Args:
        made: each of an interval that `came` knows.
        came: by interval and series.
    """
    pairs = [(forecast, float(came[forecast.interval, forecast.series])) for forecast in made]
    total = sum(actual for _, actual in pairs)
    above = sum(actual > forecast.upper for forecast, actual in pairs)
    return ForecastErrors(
        judged=len(pairs),
        error=_share([abs(forecast.expected - actual) for forecast, actual in pairs], total),
        naive_error=_share([abs(forecast.now - actual) for forecast, actual in pairs], total),
        above_upper=above / len(pairs) if pairs else None,
    )


def _share(amounts: Sequence[float], total: float) -> float | None:
    return sum(amounts) / total if total > 0.0 else None
