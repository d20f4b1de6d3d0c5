"""Totals of the requests that were submitted in the same stretch of time and agree in whatever reports group by.

All but the instance: there are too many of them for roll-ups to stay small, and they come and go.

Stored, totals are a vector of 64-bit numbers (little-endian) in the order of `FIGURES`, the moments of the first
submission and the last end, and the bytes of three histograms. Vectors are added up after joining their bytes, and so are
histograms: Postgres joins those of many roll-ups, and what arrives here are a few long ones.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from goodput_accountant.policy.accounting import UNCLASSIFIED, LedgerRow
from goodput_accountant.policy.histograms import Histogram
from goodput_accountant.policy.totals import COUNTS, Totals, Waste
from tokenfleet.contracts.ledger import GroupBy
from tokenfleet.errors import ContractError
from tokenfleet.subjects import split_model

NS_PER_S = 10**9
OUTCOMES = ("completed", "rejected", "timed_out", "cancelled", "failed", "lost")
TERMS = ("ttft", "tpot", "e2e")
CAUSES = ("timed_out", "cancelled", "failed", "lost", "late", "retried")
WASTED = ("requests", "prefill_tokens", "decode_tokens", "gpu_us")
FIGURES = (
    "rows",
    "admitted",
    "degraded",
    "judged",
    "met",
    "judged_admitted",
    "met_admitted",
    "undeclared",
    "undeclared_output_tokens",
    "input_tokens",
    "computed_tokens",
    "output_tokens",
    "good_tokens",
    "neutral_tokens",
    "answered_input_tokens",
    "answered_reused_tokens",
    "gpu_unknown",
    "gpu_us",
    *(f"outcomes.{outcome}" for outcome in OUTCOMES),
    *(f"missed_terms.{term}" for term in TERMS),
    *(f"waste.{cause}.{figure}" for cause in CAUSES for figure in WASTED),
)
"""Changes only together with a migration of what is stored, at its end."""
_PLACES = {name: place for place, name in enumerate(FIGURES)}
_COUNT_PLACES = [(name, _PLACES[name]) for name in COUNTS]
_VECTOR = np.dtype("<i8")
_pack = Struct(f"<{len(FIGURES)}q").pack


class Group(NamedTuple):
    """What the requests of a roll-up have in common, besides the time of submission."""

    site: str
    pool: str
    tenant: str
    request_class: str
    model: str
    time_scale: float


class Bucket(NamedTuple):
    """One roll-up."""

    width_s: int
    start_s: int
    """Unix seconds, a multiple of the width."""
    group: Group


class Stored(NamedTuple):
    """Totals of one group as they are stored, or of several stretches of time joined."""

    first_ns: int
    last_ns: int
    figures: bytes
    ttft: bytes
    tpot: bytes
    e2e: bytes


GROUP_KEYS: Mapping[GroupBy, Callable[[Group], str]] = {
    "class": lambda group: group.request_class,
    "tenant": lambda group: group.tenant,
    "pool": lambda group: group.pool,
    "site": lambda group: group.site,
    "version": lambda group: split_model(group.pool)[1] or "",
    "model": lambda group: group.model,
}
"""What `report.KEYS` says of each of its rows."""


def bucket_of(row: LedgerRow, width_s: int) -> Bucket:
    """Where a row belongs."""
    start_s = row.submitted_ns // NS_PER_S // width_s * width_s
    request_class = row.request_class or UNCLASSIFIED
    group = Group(row.site, row.pool, row.tenant, request_class, row.model, row.time_scale)
    return Bucket(width_s, start_s, group)


def rolled_up(rows: Iterable[LedgerRow], widths: Sequence[int]) -> dict[Bucket, Stored]:
    """The totals of rows, in roll-ups of each width.

    Args:
        rows: all in different requests.
        widths: in seconds, the widest first, each a multiple of the next.
    """
    grouped: dict[Bucket, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        grouped[bucket_of(row, widths[-1])].append(row)
    narrow = {bucket: stored(Totals.of(group)) for bucket, group in grouped.items()}
    buckets = dict(narrow)
    for width_s in widths[:-1]:
        parts: dict[Bucket, list[Stored]] = defaultdict(list)
        for bucket, totals in narrow.items():
            start_s = bucket.start_s // width_s * width_s
            parts[Bucket(width_s, start_s, bucket.group)].append(totals)
        buckets |= {bucket: joined(part) for bucket, part in parts.items()}
    return buckets


def joined(parts: Sequence[Stored]) -> Stored:
    """At least one, of the same group, as one; what Postgres does with those that a report is about."""
    if len(parts) == 1:
        return parts[0]
    return Stored(
        min(part.first_ns for part in parts),
        max(part.last_ns for part in parts),
        b"".join([part.figures for part in parts]),
        b"".join([part.ttft for part in parts]),
        b"".join([part.tpot for part in parts]),
        b"".join([part.e2e for part in parts]),
    )


def compact(kept: Stored) -> Stored:
    """The same, in as few bytes as possible.

    Raises:
        ContractError: the bytes are no totals.
    """
    sums = _sums(kept.figures).astype(_VECTOR).tobytes()
    if len(sums) == len(kept.figures):
        return kept
    histograms = (Histogram.from_bytes(data).to_bytes() for data in (kept.ttft, kept.tpot, kept.e2e))
    return Stored(kept.first_ns, kept.last_ns, sums, *histograms)


def stored(totals: Totals) -> Stored:
    """As `restored` reads it; the totals are those of rows of one group, at least one.

    Raises:
        KeyError: it has an outcome, a term or a cause of waste that has no place in `FIGURES`.
    """
    vector = [0] * len(FIGURES)
    for name, place in _COUNT_PLACES:
        vector[place] = getattr(totals, name)
    vector[_PLACES["gpu_us"]] = sum(totals.gpu_us.values())
    for outcome, count in totals.outcomes.items():
        vector[_PLACES[f"outcomes.{outcome}"]] = count
    for term, count in totals.missed_terms.items():
        vector[_PLACES[f"missed_terms.{term}"]] = count
    for cause, waste in totals.waste.items():
        for figure in WASTED:
            vector[_PLACES[f"waste.{cause}.{figure}"]] = getattr(waste, figure)
    histograms = (histogram.to_bytes() for histogram in (totals.ttft, totals.tpot, totals.e2e))
    [(first_ns, last_ns)] = totals.spans.values()
    return Stored(first_ns, last_ns, _pack(*vector), *histograms)


def restored(kept: Stored, group: Group) -> Totals:
    """The totals of a group's roll-ups, one or several joined.

    Raises:
        ContractError: the bytes are no totals.
    """
    sums: list[int] = _sums(kept.figures).tolist()
    gpu_us = sums[_PLACES["gpu_us"]]
    counts = {name: sums[place] for name, place in _COUNT_PLACES}
    return Totals(
        **counts,
        outcomes=_present(sums, "outcomes", OUTCOMES),
        missed_terms=_present(sums, "missed_terms", TERMS),
        waste={cause: waste for cause in CAUSES if (waste := _waste(sums, cause)) != Waste()},
        gpu_us={group.pool: gpu_us} if gpu_us else {},
        spans={group.time_scale: (kept.first_ns, kept.last_ns)},
        ttft=Histogram.from_bytes(kept.ttft),
        tpot=Histogram.from_bytes(kept.tpot),
        e2e=Histogram.from_bytes(kept.e2e),
    )


def _sums(figures: bytes) -> npt.NDArray[np.int64]:
    width = len(FIGURES) * _VECTOR.itemsize
    if not figures or len(figures) % width:
        raise ContractError(f"{len(figures)} bytes are no figures of a roll-up: not a multiple of {width}")
    return np.frombuffer(figures, dtype=_VECTOR).reshape(-1, len(FIGURES)).sum(axis=0)


def _present(sums: Sequence[int], what: str, names: Iterable[str]) -> dict[str, int]:
    return {name: count for name in names if (count := sums[_PLACES[f"{what}.{name}"]])}


def _waste(sums: Sequence[int], cause: str) -> Waste:
    return Waste(*(sums[_PLACES[f"waste.{cause}.{figure}"]] for figure in WASTED))
