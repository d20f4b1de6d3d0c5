"""Paired differences over seeds, and how far they can be relied on."""

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev

import msgspec

CONFIDENCE = 0.95


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of paired differences and its confidence interval; no bounds with fewer than two pairs."""

    mean: float
    low: float | None = None
    high: float | None = None


def paired(before: Sequence[float | None], after: Sequence[float | None]) -> Difference | None:
    """`after - before`, pair by pair, with Student's t interval; None unless every pair has both."""
    differences = [
        later - earlier
        for earlier, later in zip(before, after, strict=True)
        if earlier is not None and later is not None
    ]
    if not differences or len(differences) < len(before):
        return None
    mean = fmean(differences)
    if len(differences) < 2:
        return Difference(mean=mean)
    half = student_t(len(differences) - 1) * stdev(differences) / sqrt(len(differences))
    return Difference(mean=mean, low=mean - half, high=mean + half)


def student_t(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The value that |t| stays below with a probability, by bisection of `share_within`."""
    low, high = 0.0, 1.0
    while share_within(high, degrees) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if share_within(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def share_within(value: float, degrees: int) -> float:
    """P(|t| < value) of Student's distribution for whole degrees of freedom: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = atan(value / sqrt(degrees))
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    if odd:
        return 2 / pi * (angle + sin(angle) * total)
    return sin(angle) * total
