"""Latencies counted by size, so that the percentiles of many hours need no rows.

The grid has 60 buckets per decade from 0.1 ms to 10,000 s: bucket `i` covers `LOWEST_S * 10**((i - 1)/60)` to
`LOWEST_S * 10**(i/60)`, its upper end included, which is 3.9 % wide. Bucket 0 takes everything up to `LOWEST_S`, the
last one everything beyond `HIGHEST_S`. It never changes: stored counts would mean something else.

- value of a bucket   the geometric mean of its ends, at most 2 % from whatever is in it (`LOWEST_S` and `HIGHEST_S` for
                      the two outer buckets, where nothing more is known).
- percentile          linear interpolation between the values of the two buckets that hold the neighbouring ranks,
                      as of rows: so at most 2 % from what the rows themselves would give, inside the grid.
- bytes               6 bytes for each bucket that is not empty: its number (uint16) and its count (int32), little-endian.
                      A bucket may come more than once, its counts are added: *joining the bytes of histograms adds
                      them up*, and bytes of a difference may have negative counts.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tokenfleet.errors import ContractError

LOWEST_S = 1e-4
HIGHEST_S = 1e4
DECADES = 8
BUCKETS_PER_DECADE = 60
LARGEST_COUNT = 2**31 - 1

_RECORD = np.dtype([("bucket", "<u2"), ("count", "<i4")])
_LIMITS = LOWEST_S * 10 ** (np.arange(BUCKETS_PER_DECADE * DECADES + 1) / BUCKETS_PER_DECADE)
_VALUES = np.concatenate(([LOWEST_S], np.sqrt(_LIMITS[:-1] * _LIMITS[1:]), [HIGHEST_S]))
SIZE = len(_VALUES)


class Histogram:
    """How many values each bucket has."""

    __slots__ = ("counts",)

    def __init__(self, counts: npt.NDArray[np.int64] | None = None) -> None:
        self.counts = np.zeros(SIZE, dtype=np.int64) if counts is None else counts

    @classmethod
    def of(cls, values: Sequence[float]) -> "Histogram":
        """Count values in seconds."""
        if not values:
            return cls()
        buckets = np.searchsorted(_LIMITS, np.asarray(values, dtype=np.float64), side="left")
        return cls(np.bincount(buckets, minlength=SIZE).astype(np.int64))

    @classmethod
    def sum(cls, parts: Iterable["Histogram"]) -> "Histogram":
        """All parts together."""
        counts = np.zeros(SIZE, dtype=np.int64)
        for part in parts:
            counts += part.counts
        return cls(counts)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Histogram":
        """The histogram that `to_bytes` wrote, or the sum of several whose bytes were joined.

        Raises:
            ContractError: these are no bytes of a histogram.
        """
        if len(data) % _RECORD.itemsize:
            raise ContractError(f"{len(data)} bytes are no histogram: not a multiple of {_RECORD.itemsize}")
        records = np.frombuffer(data, dtype=_RECORD)
        counts = np.zeros(SIZE, dtype=np.int64)
        if len(records):
            if (last := int(records["bucket"].max())) >= SIZE:
                raise ContractError(f"these bytes are no histogram: bucket {last} of {SIZE}")
            np.add.at(counts, records["bucket"], records["count"].astype(np.int64))
        return cls(counts)

    def to_bytes(self) -> bytes:
        """Compact bytes; none for an empty histogram."""
        buckets = np.flatnonzero(self.counts)
        left = self.counts[buckets]
        parts: list[bytes] = []
        while len(buckets):
            fits = left.min() >= -LARGEST_COUNT and left.max() <= LARGEST_COUNT
            taken = left if fits else np.clip(left, -LARGEST_COUNT, LARGEST_COUNT)
            records = np.empty(len(buckets), dtype=_RECORD)
            records["bucket"], records["count"] = buckets, taken
            parts.append(records.tobytes())
            if fits:
                break
            left = left - taken
            buckets, left = buckets[left != 0], left[left != 0]
        return b"".join(parts)

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts + other.counts)

    def __sub__(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts - other.counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Histogram(total={self.total})"

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def percentile(self, percent: float) -> float | None:
        """The value that `percent` of 100 are at or below; None without values."""
        total = self.total
        if total <= 0:
            return None
        rank = percent / 100 * (total - 1)
        ends = np.cumsum(self.counts)
        ranks = [int(rank), min(int(rank) + 1, total - 1)]
        below, above = _VALUES[np.searchsorted(ends, ranks, side="right")].tolist()
        return below + (above - below) * (rank - ranks[0])
