"""How far predictions are off, so that a predicted median is a median and a P90 a P90. Pure.

The ratio of actual to predicted is kept for the latest requests, apart for those that found an idle engine, that
queued and that waited for KV room: each kind is off in its own way.
"""

from collections import deque
from typing import Literal

import numpy as np

Kind = Literal["idle", "queued", "kv", "tpot"]

KINDS: tuple[Kind, ...] = ("idle", "queued", "kv", "tpot")
REMEMBERED = 400
"""Latest requests of a kind: enough for a P90, few enough to follow a change within minutes."""
GUESS = (1.0, 1.5)
"""Before anything is known: that predictions are right and the P90 half as much again."""
PRIOR = 10
"""Requests that the guess, or what another process had learned, counts for."""
REFRESH_AFTER = 10


class Calibration:
    """Quantiles of actual over predicted, by kind."""

    def __init__(self) -> None:
        self._ratios: dict[Kind, deque[float]] = {kind: deque(maxlen=REMEMBERED) for kind in KINDS}
        self._prior: dict[Kind, tuple[float, float]] = dict.fromkeys(KINDS, GUESS)
        self._quantiles = dict(self._prior)
        self._since: dict[Kind, int] = dict.fromkeys(KINDS, 0)

    def learn(self, kind: Kind, predicted_s: float, actual_s: float) -> None:
        """A prediction met reality."""
        if predicted_s <= 0 or actual_s <= 0:
            return
        self._ratios[kind].append(actual_s / predicted_s)
        self._since[kind] += 1
        if self._since[kind] >= REFRESH_AFTER:
            self._since[kind] = 0
            self._quantiles[kind] = self._work_out(kind)

    def median_and_p90(self, kind: Kind, predicted_s: float) -> tuple[float, float]:
        """What to expect in half, and in nine of ten, of the cases with this prediction."""
        median, p90 = self._quantiles[kind]
        return predicted_s * median, predicted_s * p90

    def quantiles(self) -> dict[str, tuple[float, float]]:
        """Median and P90 of actual over predicted, by kind."""
        return {str(kind): quantiles for kind, quantiles in self._quantiles.items()}

    def restore(self, quantiles: dict[str, tuple[float, float]]) -> None:
        """Begin from what another process had learned."""
        for kind in KINDS:
            if kind in quantiles:
                self._prior[kind] = self._quantiles[kind] = quantiles[kind]

    def absolute_error(self, kind: Kind) -> tuple[float, float] | None:
        """Median and P90 of the absolute error relative to the actual value; None while nothing is known."""
        ratios = np.array(self._ratios[kind])
        if not len(ratios):
            return None
        median, _ = self._quantiles[kind]
        error = np.abs(median / ratios - 1.0)
        return float(np.median(error)), float(np.quantile(error, 0.9))

    def _work_out(self, kind: Kind) -> tuple[float, float]:
        ratios = np.array(self._ratios[kind])
        share = len(ratios) / (len(ratios) + PRIOR)
        found = np.log(np.quantile(ratios, [0.5, 0.9]))
        median, p90 = np.exp(share * found + (1.0 - share) * np.log(self._prior[kind]))
        return float(median), float(p90)
