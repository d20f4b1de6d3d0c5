"""Totals of the requests that were submitted in the same stretch of time and agree in whatever reports group by.

All but the instance: there are too many of them for roll-ups to stay small, and they come and go.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from goodput_accountant.policy.accounting import UNCLASSIFIED, LedgerRow
from goodput_accountant.policy.histograms import Histogram
from goodput_accountant.policy.totals import Totals
from tokenfleet.contracts.ledger import GroupBy
from tokenfleet.subjects import split_model

NS_PER_S = 10**9


class Bucket(NamedTuple):
    """What the requests of one roll-up have in common."""

    width_s: int
    start_s: int
    """Unix seconds, a multiple of the width."""
    site: str
    pool: str
    tenant: str
    request_class: str
    model: str


class Stored(NamedTuple):
    """Totals as they are stored."""

    figures: bytes
    """Without the histograms."""
    ttft: bytes
    tpot: bytes
    e2e: bytes


BUCKET_KEYS: Mapping[GroupBy, Callable[[Bucket], str]] = {
    "class": lambda bucket: bucket.request_class,
    "tenant": lambda bucket: bucket.tenant,
    "pool": lambda bucket: bucket.pool,
    "site": lambda bucket: bucket.site,
    "version": lambda bucket: split_model(bucket.pool)[1] or "",
    "model": lambda bucket: bucket.model,
}
"""What `report.KEYS` says of each of its rows."""


def bucket_of(row: LedgerRow, width_s: int) -> Bucket:
    """Where a row belongs."""
    start_s = row.submitted_ns // NS_PER_S // width_s * width_s
    return Bucket(
        width_s, start_s, row.site, row.pool, row.tenant, row.request_class or UNCLASSIFIED, row.model
    )


def rolled_up(rows: Iterable[LedgerRow], widths: Sequence[int]) -> dict[Bucket, Totals]:
    """The totals of rows, in roll-ups of each width.

    Args:
        rows: all in different requests.
        widths: in seconds, the widest first, each a multiple of the next.
    """
    groups: dict[Bucket, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        groups[bucket_of(row, widths[-1])].append(row)
    narrow = {bucket: Totals.of(group) for bucket, group in groups.items()}
    buckets = dict(narrow)
    for width_s in widths[:-1]:
        parts: dict[Bucket, list[Totals]] = defaultdict(list)
        for bucket, totals in narrow.items():
            start_s = bucket.start_s // width_s * width_s
            parts[bucket._replace(width_s=width_s, start_s=start_s)].append(totals)
        buckets |= {bucket: Totals.sum(part) for bucket, part in parts.items()}
    return buckets


def stored(totals: Totals) -> Stored:
    """As `restored` reads it."""
    figures = msgspec.structs.replace(totals, ttft=Histogram(), tpot=Histogram(), e2e=Histogram())
    histograms = (histogram.to_bytes() for histogram in (totals.ttft, totals.tpot, totals.e2e))
    return Stored(figures.to_bytes(), *histograms)


def restored(parts: Sequence[Stored]) -> Totals:
    """The totals of all parts together.

    Raises:
        ContractError: the bytes of one are no totals.
    """
    figures = Totals.sum(Totals.from_bytes(part.figures) for part in parts)
    return msgspec.structs.replace(
        figures,
        ttft=Histogram.from_bytes(b"".join(part.ttft for part in parts)),
        tpot=Histogram.from_bytes(b"".join(part.tpot for part in parts)),
        e2e=Histogram.from_bytes(b"".join(part.e2e for part in parts)),
    )
