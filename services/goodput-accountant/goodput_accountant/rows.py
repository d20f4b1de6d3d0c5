"""Pages of ledger rows, in the order of the chains.

A page goes on where the last one ended, in windows of a day's chain, so that reading ten million rows takes no longer
for each page than reading the first; what is written meanwhile comes at the end of its day.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec

from goodput_accountant.ledger import Ledger
from goodput_accountant.policy.chain import FIELDS
from goodput_accountant.questions import BadQuestionError, check_span, check_text
from tokenfleet.contracts.ledger import LedgerRows, RowCursor, RowsRequest

LARGEST_PAGE_BYTES = 900_000
LARGEST_PAGE_ROWS = 10_000
WINDOW_ROWS = 2_000
LARGEST_WINDOW_ROWS = 50_000
"""Looked at at once when few of the rows match."""
LONGEST_SCAN_ROWS = 200_000
"""Looked at for one page: a page with few rows, or none, comes before its asker gives up waiting."""
MOST_OF_AN_ID = 20

EPOCH_DAY = date(1970, 1, 1)
_FIELD_LIST = ", ".join(FIELDS)
# Statements are built only from names of columns; every value is a parameter.
DAYS = """
SELECT day, rows, dropped_rows FROM ledger_days
WHERE ($1::date IS NULL OR day >= $1) AND ($2::date IS NULL OR day <= $2) ORDER BY day
"""
WINDOW = f"""
SELECT sequence, {_FIELD_LIST} FROM ledger_current
WHERE submitted_at >= $1 AND submitted_at < $2 AND sequence > $3 AND sequence <= $4
  AND ($5::text IS NULL OR client_request_id LIKE $5)
  AND ($6::text IS NULL OR pool = $6)
  AND ($7::text IS NULL OR tenant = $7)
ORDER BY sequence
"""  # noqa: S608
OF_AN_ID = f"""
SELECT {_FIELD_LIST} FROM ledger_current
WHERE (request_id = $1 OR client_request_id = $1)
  AND ($2::text IS NULL OR tenant = $2) AND ($3::text IS NULL OR pool = $3)
ORDER BY submitted_at DESC LIMIT $4
"""  # noqa: S608


class _Day(msgspec.Struct, frozen=True):
    day: date
    rows: int
    dropped_rows: int

    @property
    def number(self) -> int:
        return (self.day - EPOCH_DAY).days


class RowPages:
    """The handler of requests for rows."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def answer(self, request: RowsRequest) -> LedgerRows:
        """One page.

        Raises:
            BadQuestionError: the request contradicts itself, or what it asks for is no longer kept.
            UnavailableError: Postgres is away.
        """
        check_span(request.from_ns, request.to_ns)
        check_text(request.client_request_id_prefix, request.pool, request.tenant, request.id)
        if not 1 <= request.limit <= LARGEST_PAGE_ROWS:
            raise BadQuestionError(f"A page has 1 to {LARGEST_PAGE_ROWS:,} rows, not {request.limit}.")
        async with self._ledger.reading() as connection:
            if request.id is not None:
                most = min(request.limit, MOST_OF_AN_ID)
                found = await connection.fetch(OF_AN_ID, request.id, request.tenant, request.pool, most)
                return LedgerRows(columns=FIELDS, rows=tuple(map(tuple, found)))
            days = [_Day(*record) for record in await connection.fetch(DAYS, *_days_of(request))]
            dropped = sum(day.dropped_rows for day in days)
            if dropped and request.from_ns is not None:
                raise BadQuestionError(_no_longer_kept(days, dropped))
            return await _page(connection, request, days, dropped)


async def _page(connection: Any, request: RowsRequest, days: Sequence[_Day], dropped: int) -> LedgerRows:
    page = _Page(request.limit)
    total = sum(day.rows - day.dropped_rows for day in days)
    after = request.after
    done = scanned = 0
    width = WINDOW_ROWS
    for day in days:
        begin = day.dropped_rows
        if after is not None:
            begin = max(begin, {True: day.rows, False: 0}[day.number < after.day])
            begin = max(begin, after.sequence) if day.number == after.day else begin
        done += begin - day.dropped_rows
        while begin < day.rows:
            end = min(begin + width, day.rows)
            bounds = *_moments(day, request), begin, end
            matching = await connection.fetch(WINDOW, *bounds, *_filters(request))
            stopped = page.take(matching)
            reached = end if stopped is None else stopped
            done, scanned = done + reached - begin, scanned + reached - begin
            begin = reached
            if stopped is not None or page.full or scanned >= LONGEST_SCAN_ROWS:
                more = RowCursor(day=day.number, sequence=begin) if done < total else None
                return page.answer(more, done, total, dropped)
            if len(matching) * 4 < width:
                width = min(width * 2, LARGEST_WINDOW_ROWS)
    return page.answer(None, done, total, dropped)


class _Page:
    """Rows as they are collected, up to what one message holds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._rows: list[tuple[Any, ...]] = []

    @property
    def full(self) -> bool:
        return len(self._rows) >= self._limit

    def take(self, records: Sequence[Any]) -> int | None:
        """Add rows; the sequence of the last one that there was room for, unless there was room for all."""
        for place, record in enumerate(records):
            _, *row = record
            size = len(msgspec.json.encode(row)) + 1
            if self.full or self._bytes + size > LARGEST_PAGE_BYTES:
                return records[place - 1]["sequence"] if place else record["sequence"] - 1
            self._rows.append(tuple(row))
            self._bytes += size
        return None

    def answer(self, more: RowCursor | None, done: int, total: int, dropped: int) -> LedgerRows:
        rows = tuple(self._rows)
        return LedgerRows(columns=FIELDS, rows=rows, next=more, done=done, total=total, dropped=dropped)


def _filters(request: RowsRequest) -> tuple[str | None, str | None, str | None]:
    prefix = request.client_request_id_prefix
    return None if prefix is None else like_prefix(prefix), request.pool, request.tenant


def _days_of(request: RowsRequest) -> tuple[date | None, date | None]:
    first = None if request.from_ns is None else _moment(request.from_ns).date()
    last = None if request.to_ns is None else _moment(request.to_ns - 1).date()
    return first, last


def _moments(day: _Day, request: RowsRequest) -> tuple[datetime, datetime]:
    """From when to when rows of a day are wanted."""
    begin = datetime.combine(day.day, time(), UTC)
    end = begin + timedelta(days=1)
    if request.from_ns is not None:
        begin = max(begin, _moment(request.from_ns))
    if request.to_ns is not None:
        end = min(end, _moment(request.to_ns))
    return begin, end


def _moment(unix_ns: int) -> datetime:
    return datetime.combine(EPOCH_DAY, time(), UTC) + timedelta(microseconds=unix_ns // 1000)


def like_prefix(prefix: str) -> str:
    """The LIKE pattern of whatever begins with `prefix`."""
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"{escaped}%"


def _no_longer_kept(days: Sequence[_Day], dropped: int) -> str:
    last = max(day.day for day in days if day.dropped_rows)
    return (
        f"{dropped:,} requests of this span, the last of them submitted on {last} (UTC), are no longer kept row by row. "
        f"Ask from {last + timedelta(days=1)} on; reports still cover the whole span."
    )
