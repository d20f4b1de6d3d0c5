"""Goodput windows: what each pool and class delivered between two moments, for feedback and dashboards.

Windows are aligned to multiples of their length and a request belongs to the one it ended in, so every
accountant computes the same window from the same ledger.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from goodput_accountant.policy.accounting import UNCLASSIFIED, LedgerRow
from tokenfleet.contracts.control import GoodputWindow
from tokenfleet.contracts.requests import Outcome


class WindowRow(msgspec.Struct, frozen=True):
    """What windows need to know of a row; named as its columns. There are a hundred thousand in a busy window."""

    site: str
    pool: str
    request_class: str | None
    ended_ns: int
    outcome: Outcome
    time_scale: float
    met: bool | None
    output_tokens: int
    good_output_tokens: int


def last_window_end(now_ns: int, window_ns: int, settle_ns: int) -> int:
    """The end of the newest window that has been over for `settle_ns`, the time rows take to arrive."""
    return (now_ns - settle_ns) // window_ns * window_ns


def split(start_ns: int, end_ns: int, window_ns: int) -> list[tuple[int, int]]:
    """The whole aligned windows in `[start_ns, end_ns)`, oldest first."""
    first_ns = -(-start_ns // window_ns) * window_ns
    return [(begin, begin + window_ns) for begin in range(first_ns, end_ns - window_ns + 1, window_ns)]


def goodput_windows(rows: Iterable[LedgerRow | WindowRow], start_ns: int, end_ns: int) -> list[GoodputWindow]:
    """One window per site, pool and class of the rows that ended in `[start_ns, end_ns)`.

    `window_s` is in engine seconds: tokens / window_s is a rate of the engines.
    """
    groups: dict[tuple[str, str, str], list[LedgerRow | WindowRow]] = defaultdict(list)
    for row in rows:
        if start_ns <= row.ended_ns < end_ns:
            groups[row.site, row.pool, row.request_class or UNCLASSIFIED].append(row)
    return [_window(key, group, start_ns, end_ns) for key, group in sorted(groups.items())]


def _window(
    key: tuple[str, str, str], rows: Sequence[LedgerRow | WindowRow], start_ns: int, end_ns: int
) -> GoodputWindow:
    site, pool, request_class = key
    outcomes = Counter(row.outcome for row in rows)
    return GoodputWindow(
        time_ns=end_ns,
        site=site,
        pool=pool,
        request_class=request_class,
        window_s=(end_ns - start_ns) / 1e9 * max(row.time_scale for row in rows),
        offered=len(rows),
        completed=outcomes["completed"],
        rejected=outcomes["rejected"],
        timed_out=outcomes["timed_out"],
        cancelled=outcomes["cancelled"],
        failed=outcomes["failed"],
        lost=outcomes["lost"],
        met=sum(row.met is True for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        good_tokens=sum(row.good_output_tokens for row in rows),
    )
