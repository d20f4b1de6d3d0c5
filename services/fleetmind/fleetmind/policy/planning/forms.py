"""Simple forms of forecast: as now, a level, a damped trend, a day's season. Pure.

Each is fed interval by interval, and says what it expects so many intervals later. Their constants are in intervals of a
minute, and were chosen on the traces and the synthetic days of `docs/adr/0016-long-loop.md`.
"""

from math import exp, floor

import msgspec

DAY_S = 86_400.0

LEVEL_MEMORY = 10.0
"""Time constant of the level, in intervals."""
TREND_LEVEL_MEMORY, TREND_MEMORY = 5.0, 60.0
"""Those of the level that has a trend, and of its trend."""
TREND_DAMPING = 0.97
"""What is left of the trend an interval later: no slope goes on for ever."""
BINS = 96
"""Of a day's season: a quarter of an hour each."""
DAY_WEIGHT = 0.3
"""Of the latest day in the season, once there are more than three."""
RATIO_MEMORY = 10.0
"""Time constant, in intervals, of how far today is from its season."""
RATIO_DAMPING_S = 3 * 3600.0
"""Time constant with which today returns to its season."""


def weight(memory: float, count: int) -> float:
    """Of the latest of `count` values: their plain mean as long as they are few."""
    return max(1.0 - exp(-1.0 / memory), 1.0 / count)


class Level(msgspec.Struct, kw_only=True):
    """An exponentially weighted mean."""

    value: float = 0.0
    count: int = 0

    def add(self, work: float) -> None:
        self.count += 1
        self.value += weight(LEVEL_MEMORY, self.count) * (work - self.value)


class Trend(msgspec.Struct, kw_only=True):
    """Holt's level with a damped slope."""

    value: float = 0.0
    slope: float = 0.0
    """Per interval."""
    count: int = 0

    def add(self, work: float, missed: int) -> None:
        """Args:
        work: of the interval.
        missed: intervals before it that are not known.
        """
        self.count += 1
        slope = self.slope * TREND_DAMPING ** (missed + 1)
        error = work - (self.value + slope)
        gain = weight(TREND_LEVEL_MEMORY, self.count)
        if self.count > 1:
            self.slope = slope + gain * (1.0 - exp(-1.0 / TREND_MEMORY)) * error
        self.value += slope + gain * error

    def ahead(self, steps: int) -> float:
        slopes = TREND_DAMPING * (1.0 - TREND_DAMPING**steps) / (1.0 - TREND_DAMPING)
        return max(0.0, self.value + self.slope * slopes)


class Season(msgspec.Struct, kw_only=True):
    """What is usual at each time of the day, and how far today is from it."""

    usual: list[float | None] = msgspec.field(default_factory=lambda: [None] * BINS)
    days: list[int] = msgspec.field(default_factory=lambda: [0] * BINS)
    """That each bin was seen on."""
    bin: int = -1
    """The one that is being seen,"""
    bin_sum: float = 0.0
    """its work so far,"""
    bin_count: int = 0
    """and its intervals so far."""
    today: float = 0.0
    """Work of late, weighted,"""
    then: float = 0.0
    """and what is usual for it, weighted alike."""

    def add(self, start_s: float, work: float) -> None:
        """Args:
        start_s: of the interval, Unix time.
        work: of the interval.
        """
        number = int(start_s % DAY_S // (DAY_S / BINS))
        if number != self.bin:
            self._close()
            self.bin, self.bin_sum, self.bin_count = number, 0.0, 0
        self.bin_sum += work
        self.bin_count += 1
        usual = self._usual(start_s)
        if usual is not None:
            share = 1.0 - exp(-1.0 / RATIO_MEMORY)
            self.today += share * (work - self.today)
            self.then += share * (usual - self.then)

    def ahead(self, start_s: float, horizon_s: float) -> float | None:
        """Of the interval that begins so long after `start_s`; None: that time of day is not known yet."""
        usual = self._usual(start_s + horizon_s)
        if usual is None:
            return None
        ratio = self.today / self.then if self.then > 0 else 1.0
        return usual * (1.0 + exp(-horizon_s / RATIO_DAMPING_S) * (ratio - 1.0))

    def _close(self) -> None:
        if not self.bin_count:
            return
        self.days[self.bin] += 1
        before, mean = self.usual[self.bin], self.bin_sum / self.bin_count
        share = max(DAY_WEIGHT, 1.0 / self.days[self.bin])
        self.usual[self.bin] = mean if before is None else before + share * (mean - before)

    def _usual(self, at_s: float) -> float | None:
        """Between the middles of two bins, in proportion."""
        place = at_s % DAY_S / (DAY_S / BINS) - 0.5
        first = floor(place)
        left, right = self.usual[first % BINS], self.usual[(first + 1) % BINS]
        if left is None or right is None:
            return None
        return left + (place - first) * (right - left)
