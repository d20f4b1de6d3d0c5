"""Arrival times: recorded coarsely, needed finely.

Some traces round their timestamps to buckets of seconds. Replayed as they are, requests would come in bursts
that never were, so each is spread uniformly inside its bucket, in the order of the file.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SORTED = "rows were not in order of arrival and have been sorted"
"""The assumption of a loader that had to sort."""

MIN_REQUESTS_PER_TIMESTAMP = 1.5
"""Below this, equal timestamps are coincidences of a fine clock, not a coarse one."""

MIN_REGULAR_SHARE = 0.9
"""Share of the gaps that have to be whole multiples of the width."""

GAP_TOLERANCE = 0.01
"""Buckets drift by their own rounding: 2,999 and 3,001 ms are both 3 s."""

FINEST_BUCKET_S = 1e-6
"""Nothing is gained by spreading requests over less."""


def arrival_order(timestamps_s: Sequence[float]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """The places of the rows in order of time, equal times in the order of the file, and what that assumes."""
    times = np.asarray(timestamps_s, dtype=float)
    if np.all(times[1:] >= times[:-1]):
        return np.arange(len(times)), ()
    return np.argsort(times, kind="stable"), (SORTED,)


def spread_buckets(timestamps_s: Sequence[float], seed: int) -> tuple[list[float], tuple[str, ...]]:
    """Sorted timestamps, spread inside their buckets if they lie in any, and what was assumed to do so."""
    width = bucket_width_s(timestamps_s)
    if width is None:
        return list(timestamps_s), ()
    return spread_known_buckets(timestamps_s, width, seed)


def spread_known_buckets(
    timestamps_s: Sequence[float], width_s: float, seed: int
) -> tuple[list[float], tuple[str, ...]]:
    """Sorted timestamps of a format known to round to this width, spread, and the assumption made."""
    assumption = f"timestamps lie in buckets of {width_s:g} s: each request is spread uniformly inside its own (seed {seed})"
    return spread(timestamps_s, width_s, seed), (assumption,)


def bucket_width_s(timestamps_s: Sequence[float]) -> float | None:
    """The width of the buckets that sorted timestamps lie in; None if they are not bucketed."""
    distinct = np.unique(np.asarray(timestamps_s, dtype=float))
    if len(distinct) < 3 or len(timestamps_s) < MIN_REQUESTS_PER_TIMESTAMP * len(distinct):
        return None
    gaps = np.diff(distinct)
    width = float(np.median(gaps))
    if width < FINEST_BUCKET_S:
        return None
    multiples = np.maximum(np.round(gaps / width), 1)
    regular = np.abs(gaps / width - multiples) <= GAP_TOLERANCE * multiples
    return width if regular.mean() >= MIN_REGULAR_SHARE else None


def spread(timestamps_s: Sequence[float], width_s: float, seed: int) -> list[float]:
    """Sorted timestamps, each moved uniformly inside its bucket; still sorted, and equal for equal seeds."""
    times = np.asarray(timestamps_s, dtype=float)
    starts, counts = np.unique(times, return_counts=True)
    # A bucket ends where the next one starts, so that rounding drift cannot swap neighbours.
    widths = np.minimum(width_s, np.append(np.diff(starts), width_s))
    offsets = np.random.default_rng(seed).random(len(times)) * np.repeat(widths, counts)
    # Buckets do not overlap, so sorting all sorts each.
    return np.sort(np.repeat(starts, counts) + offsets).tolist()
