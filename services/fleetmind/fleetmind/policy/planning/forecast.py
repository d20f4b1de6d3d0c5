"""How much work one model will be asked for at one entry, learned from what it was asked for. Pure."""

import msgspec

INTERVAL_S = 60.0


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
    """What made it: `now`, `level`, `trend` or `season`; `unknown` before anything was added."""


class SeriesState(msgspec.Struct, kw_only=True):
    """All that a series has learned: plain values, to be kept and restored."""

    interval_s: float = INTERVAL_S


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
            interval_start_unix_s: when it began; rounded down to a whole interval.
            work: asked for in it, engine seconds per second.

        Returns:
            Whether it counted: what is repeated, or comes after a later one, does not.
        """
        raise NotImplementedError

    def ahead(self, horizon_s: float) -> Forecast:
        """What is expected so far ahead. Errors at a horizon are measured from when it was first asked for."""
        raise NotImplementedError
