"""What TokenPilot has learned of a pool, for everybody who predicts and for its own successor.

One value per pool in the KV bucket `latency`.
"""

import msgspec


class Factors(msgspec.Struct, frozen=True, kw_only=True):
    """How many seconds an engine takes for each second that its profile says."""

    prefill: float = 1.0
    step: float = 1.0
    observations: int = 0


class LengthCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Answers by class (an octave of tokens) and bin of their length (a third of an octave)."""

    by_previous: list[list[float]]
    by_input: list[list[float]]


class PoolLatency(msgspec.Struct, frozen=True, kw_only=True):
    """The coefficients and distributions of one pool."""

    pool: str
    site: str
    time_ns: int
    factors: dict[str, Factors]
    """By instance."""
    profiles: dict[str, str]
    """The profile that each instance's factors are relative to."""
    ratios: dict[str, tuple[float, float]]
    """Median and P90 of actual over predicted, by kind of prediction."""
    lengths: LengthCounts
    schema: int = 1
