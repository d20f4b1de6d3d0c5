"""The totals of a span of time: from roll-ups where there are some, and from rows at the ends and for what is newer.

Of one moment, and exact: whatever the roll-ups have so far, they and the rows that they lack are all the rows that count.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from goodput_accountant.ledger import REPORT_ROWS, TooManyRowsError, as_row
from goodput_accountant.policy.accounting import LedgerRow
from goodput_accountant.policy.cover import DAY_S, HOUR_S, US_PER_S, Cover, Span, cover, within
from goodput_accountant.policy.report import KEYS
from goodput_accountant.policy.rollups import GROUP_KEYS, Group, Stored, bucket_of, restored
from goodput_accountant.policy.totals import Totals
from goodput_accountant.questions import BadQuestionError
from goodput_accountant.rolled import DayState, moment, read_buckets, read_days, read_tail
from tokenfleet.contracts.ledger import GroupBy, ReportRequest

Key = tuple[str, str]
"""A class, and what a report groups by."""
Groups = Mapping[Key, Totals]


class Wanted(msgspec.Struct, frozen=True):
    """The days a report is about, and which stretch of them."""

    days: Sequence[DayState]
    span: Span

    @property
    def dropped(self) -> Sequence[DayState]:
        """Those of which rows were dropped."""
        return [day for day in self.days if day.dropped_rows]


async def read_wanted(connection: Any, request: ReportRequest) -> Wanted | None:
    """What a report is about; None if the ledger has nothing of that time."""
    first = None if request.from_ns is None else request.from_ns // 1000
    last = None if request.to_ns is None else request.to_ns // 1000
    last_day = None if last is None else _date(max(last - 1, 0))
    days = await read_days(connection, None if first is None else _date(first), last_day)
    if not days:
        return None
    start, end = days[0].span.start, days[-1].span.end
    span = Span(
        start if first is None else max(start, first),
        end if last is None else min(end, last),
    )
    return Wanted(days, span)


async def span_totals(
    connection: Any, request: ReportRequest, wanted: Wanted, max_rows: int
) -> Groups | None:
    """The totals of a report's rows by class and group; None where roll-ups are of no use for it.

    Args:
        connection: in a transaction that sees one moment.
        request: whose filters and grouping count.
        wanted: the days and the stretch of them.
        max_rows: no more rows may have to be read than this.

    Raises:
        BadQuestionError: rows that would be needed are no longer kept.
        TooManyRowsError: more rows would have to be read.
    """
    reader = _Reader(connection, request, max_rows)
    added, removed, holes = await reader.tails(wanted.days)
    fine_from = max((day.span.end for day in wanted.days if not day.fine), default=0)
    plan = cover(wanted.span, fine_from, holes)
    if not plan.pieces:
        return None
    _check_kept(plan, wanted)
    buckets = await read_buckets(connection, plan.pieces, request.pool, request.tenant)
    rolled = [piece.span for piece in plan.pieces]
    rows = [row for row in added if within(row.submitted_ns // 1000, rolled)]
    rows += [row for span in plan.spans for row in await reader.rows(span)]
    gone = [row for row in removed if within(row.submitted_ns // 1000, rolled)]
    return await asyncio.to_thread(_grouped, buckets, rows, gone, request.group_by)


class _Reader:
    """Reads rows for one report, up to as many as it may read."""

    def __init__(self, connection: Any, request: ReportRequest, max_rows: int) -> None:
        self._connection = connection
        self._request = request
        self._max_rows = max_rows
        self._left = max_rows

    async def tails(self, days: Iterable[DayState]) -> tuple[list[LedgerRow], list[LedgerRow], list[Span]]:
        """What the roll-ups of some days lack: rows more, rows too many, and the hours not to be read from roll-ups.

        Without a row that a later one replaced, nothing tells when the others of its hour began and ended. Where the
        rows of that hour were dropped the bounds stay as they were.
        """
        added: list[LedgerRow] = []
        removed: list[LedgerRow] = []
        holes: set[Span] = set()
        filters = self._request.pool, self._request.tenant
        for day in days:
            if day.rolled == day.rows:
                continue
            most = self._left + 1
            tail = await read_tail(self._connection, day.day, day.rolled, day.rows, most, *filters)
            self._count(len(tail.added) + len(tail.removed))
            added += tail.added
            if day.dropped_rows:
                removed += tail.removed
            else:
                holes |= {_hour(row) for row in tail.removed}
        return added, removed, sorted(holes)

    async def rows(self, span: Span) -> list[LedgerRow]:
        """The rows of a stretch of time."""
        bounds = moment(span.start), moment(span.end)
        filters = self._request.pool, self._request.tenant
        records = await self._connection.fetch(REPORT_ROWS, None, *bounds, *filters, self._left + 1)
        self._count(len(records))
        return list(map(as_row, records))

    def _count(self, rows: int) -> None:
        self._left -= rows
        if self._left < 0:
            raise TooManyRowsError(
                f"The ends of this span, and what is not rolled up yet, have more than {self._max_rows} requests. Begin and "
                "end at whole hours (UTC), narrow it by pool or tenant, ask again later, or raise TOKENFLEET_REPORT_MAX_ROWS."
            )


def _check_kept(plan: Cover, wanted: Wanted) -> None:
    for day in wanted.dropped:
        for span in plan.spans:
            if span.start < day.span.end and day.span.start < span.end:
                raise BadQuestionError(
                    f"The rows of {day.day} are no longer kept, only its roll-ups: begin and end at whole hours (UTC)."
                )


def _grouped(
    rolled: Iterable[tuple[Group, Stored]],
    rows: Iterable[LedgerRow],
    gone: Iterable[LedgerRow],
    group_by: GroupBy,
) -> Groups:
    parts: dict[Key, list[Totals]] = defaultdict(list)
    key_of = GROUP_KEYS[group_by]
    for group, figures in rolled:
        parts[group.request_class, key_of(group)].append(restored(figures, group))
    totals = {key: Totals.sum(part) for key, part in parts.items()}
    for key, more in _by_key(rows, group_by).items():
        totals[key] = totals[key] + more if key in totals else more
    for key, less in _by_key(gone, group_by).items():
        totals[key] = totals.get(key, Totals()) - less
    return {key: figures for key, figures in totals.items() if figures.rows}


def _by_key(rows: Iterable[LedgerRow], group_by: GroupBy) -> Groups:
    groups: dict[Key, list[LedgerRow]] = defaultdict(list)
    class_of, key_of = KEYS["class"], KEYS[group_by]
    for row in rows:
        groups[class_of(row), key_of(row)].append(row)
    return {key: Totals.of(group) for key, group in groups.items()}


def _hour(row: LedgerRow) -> Span:
    start = bucket_of(row, HOUR_S).start_s * US_PER_S
    return Span(start, start + HOUR_S * US_PER_S)


def _date(unix_us: int) -> date:
    return datetime.fromtimestamp(0, UTC).date() + timedelta(days=unix_us // (DAY_S * US_PER_S))
