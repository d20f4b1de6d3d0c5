"""Ridge regression over a sliding window, refitted now and then: the stand-in for llm-d's boosted trees."""

from collections import deque

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

WINDOW_SAMPLES = 5_000
MIN_SAMPLES = 100
MIN_SAMPLES_EACH_SIDE = 200
PENALTY = 1e-3
"""Of the squared standardised coefficients, for each sample."""


class WindowedRidge:
    """Predicts a latency from features; one model for queued requests and one for others once both are known well.

    Features are standardised; a prediction is never below zero.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[list[float], bool, float]] = deque(maxlen=WINDOW_SAMPLES)
        self._both: _Fit | None = None
        self._sides: tuple[_Fit, _Fit] | None = None

    def add(self, features: list[float], queued: bool, latency_s: float) -> None:
        self._samples.append((features, queued, latency_s))

    def fit(self) -> None:
        """Learn from the window; does nothing with fewer than 100 samples."""
        if len(self._samples) < MIN_SAMPLES:
            return
        x = np.array([features for features, _, _ in self._samples])
        queued = np.array([queued for _, queued, _ in self._samples])
        y = np.array([latency for _, _, latency in self._samples])
        self._both = _Fit(x, y)
        if MIN_SAMPLES_EACH_SIDE <= queued.sum() <= len(y) - MIN_SAMPLES_EACH_SIDE:
            self._sides = _Fit(x[~queued], y[~queued]), _Fit(x[queued], y[queued])
        else:
            self._sides = None

    @property
    def ready(self) -> bool:
        return self._both is not None

    def predict(self, x: Matrix, queued: npt.NDArray[np.bool_]) -> Matrix:
        """Seconds for each row. Only once `ready`."""
        assert self._both is not None
        if self._sides is None:
            predicted = self._both(x)
        else:
            predicted = np.where(queued, self._sides[1](x), self._sides[0](x))
        return np.maximum(predicted, 0.0)


class _Fit:
    """One fitted linear form."""

    def __init__(self, x: Matrix, y: Matrix) -> None:
        self._mean = x.mean(axis=0)
        scale = x.std(axis=0)
        self._scale = np.where(scale > 0, scale, 1.0)
        self._offset = y.mean()
        z = (x - self._mean) / self._scale
        gram = z.T @ z + PENALTY * len(y) * np.eye(z.shape[1])
        self._weights = np.linalg.solve(gram, z.T @ (y - self._offset))

    def __call__(self, x: Matrix) -> Matrix:
        return (x - self._mean) / self._scale @ self._weights + self._offset
