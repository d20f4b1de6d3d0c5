"""The figures of a part of a run's requests, over all offered and over those admitted."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from goodput_accountant.policy.accounting import LedgerRow
from goodput_accountant.policy.report import summarise
from lab.sim.lengths import LENGTHS, length_class
from slomax.policy.classify import LONG_CONTEXT

MOST_TENANTS = 20
"""With more, each tenant's figures say little, and nobody reads as many."""

REASONS = "rejected_by_reason"
"""The key of a table whose rows are absent where they are 0."""


def figures_of(rows: Sequence[LedgerRow], duration_s: float) -> dict[str, Any]:
    """The figures of a group, per second of the whole run."""
    summary = summarise(rows, duration_s)
    return {
        "offered": summary.offered,
        "rejected": summary.rejected,
        REASONS: rejected_by_reason(rows),
        "output_tokens_per_s": summary.output_tokens_per_s,
        "goodput_tokens_per_s": summary.goodput_tokens_per_s,
        "attainment_offered": summary.attainment_offered,
        "attainment_admitted": summary.attainment_admitted,
        "ttft_s": msgspec.to_builtins(summary.ttft_s),
    }


def rejected_by_reason(rows: Iterable[LedgerRow]) -> dict[str, int]:
    """How many were turned away, by the reason they were given."""
    return dict(sorted(Counter(row.reason for row in rows if row.outcome == "rejected").items()))


def by_class(rows: Sequence[LedgerRow]) -> dict[str, dict[str, Any]]:
    """What a summary does not say of each class: why requests were turned away."""
    return {
        name: {REASONS: rejected_by_reason(group)}
        for name, group in _grouped(rows, lambda row: row.request_class or "").items()
    }


def by_input_length(rows: Sequence[LedgerRow], duration_s: float) -> dict[str, dict[str, Any]]:
    """Every length class, whether anybody is in it or not."""
    groups = _grouped(rows, lambda row: length_class(row.input_tokens))
    return {name: figures_of(groups.get(name, ()), duration_s) for name in LENGTHS}


def by_tenant(rows: Sequence[LedgerRow], duration_s: float) -> dict[str, dict[str, Any]]:
    """Each tenant; empty where there is only one, or more than `MOST_TENANTS`."""
    groups = _grouped(rows, lambda row: row.tenant)
    if not 1 < len(groups) <= MOST_TENANTS:
        return {}
    return {name: figures_of(groups[name], duration_s) for name in sorted(groups, key=_by_number)}


def starved_s(rows: Iterable[LedgerRow]) -> float | None:
    """The longest that any long-context request waited: for its first token, or for being turned away or given up.

    None where there are no such requests.
    """
    waits = [
        row.e2e_s if row.ttft_s is None else row.ttft_s for row in rows if row.request_class == LONG_CONTEXT
    ]
    return max(waits, default=None)


def _grouped(rows: Iterable[LedgerRow], key: Callable[[LedgerRow], str]) -> Mapping[str, list[LedgerRow]]:
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _by_number(name: str) -> tuple[str, int]:
    """`tenant-10` comes after `tenant-9`."""
    head, _, tail = name.rpartition("-")
    return (head, int(tail)) if tail.isdecimal() else (name, 0)
