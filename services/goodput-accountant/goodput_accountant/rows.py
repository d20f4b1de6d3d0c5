"""Pages of ledger rows, in the order of the chains.

A page goes on where the last one ended, in windows of a day's chain, so that reading ten million rows takes no longer
for each page than reading the first; what is written meanwhile comes at the end of its day.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from goodput_accountant.appending import timestamp
from goodput_accountant.kept import KeptDay, kept_days
from goodput_accountant.ledger import Ledger, like_prefix
from goodput_accountant.policy.chain import FIELDS
from goodput_accountant.questions import BadQuestionError, check_span, check_text
from tokenfleet.contracts.ledger import LedgerRows, RowCursor, RowKey, RowsRequest

LARGEST_PAGE_BYTES = 900_000
LARGEST_PAGE_ROWS = 10_000
WINDOW_ROWS = 2_500
LARGEST_WINDOW_ROWS = 50_000
"""Looked at at once when few of the rows match."""
LONGEST_SCAN_ROWS = 200_000
"""Looked at for one page: a page with few rows, or none, comes before its asker gives up waiting."""
MOST_OF_AN_ID = 20

_FIELD_LIST = ", ".join(FIELDS)
# Statements are built only from names of columns; every value is a parameter.
# The rows that count, as in `ledger_current`, said so that Postgres looks for a correction only where there may be one.
WINDOW = f"""
SELECT sequence, {_FIELD_LIST} FROM ledger AS one LEFT JOIN LATERAL (
    SELECT true AS corrected FROM ledger AS later WHERE one.revision = 0 AND later.revision > 0
      AND later.request_id = one.request_id AND later.submitted_at = one.submitted_at LIMIT 1
) AS correction ON true
WHERE submitted_at >= $1 AND submitted_at < $2 AND sequence > $3 AND sequence <= $4
  AND ($5::text IS NULL OR client_request_id LIKE $5)
  AND ($6::text IS NULL OR pool = $6)
  AND ($7::text IS NULL OR tenant = $7)
  AND corrected IS NULL
ORDER BY sequence
"""  # noqa: S608
OF_AN_ID = f"""
SELECT {_FIELD_LIST} FROM ledger_current
WHERE (request_id = $1 OR client_request_id = $1)
  AND ($2::text IS NULL OR tenant = $2) AND ($3::text IS NULL OR pool = $3)
ORDER BY submitted_at DESC LIMIT $4
"""  # noqa: S608
PLACE_OF = """
SELECT (submitted_at AT TIME ZONE 'UTC')::date - date '1970-01-01', sequence FROM ledger
WHERE request_id = $1 AND revision = $2 AND ($3::text IS NULL OR tenant = $3) ORDER BY submitted_at DESC LIMIT 1
"""


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
        if request.id is None and request.after is None and request.after_row is None:
            await self._ledger.summarise(await self._days(request))
        async with self._ledger.reading() as connection:
            if request.id is not None:
                most = min(request.limit, MOST_OF_AN_ID)
                found = await connection.fetch(OF_AN_ID, request.id, request.tenant, request.pool, most)
                return LedgerRows(columns=FIELDS, rows=tuple(map(tuple, found)))
            after = request.after
            if request.after_row is not None:
                after = await _place_of(connection, request.after_row, request.tenant)
            days = await kept_days(connection, request.from_ns, request.to_ns)
            return await _page(connection, request, days, after)

    async def _days(self, request: RowsRequest) -> list[KeptDay]:
        async with self._ledger.reading() as connection:
            return await kept_days(connection, request.from_ns, request.to_ns)


async def _place_of(connection: Any, key: RowKey, tenant: str | None) -> RowCursor:
    check_text(key.request_id)
    place = await connection.fetchrow(PLACE_OF, key.request_id, key.revision, tenant)
    if place is None:
        raise BadQuestionError(
            f"There is no row {key.request_id!r} (revision {key.revision}) to go on after."
        )
    return RowCursor(day=place[0], sequence=place[1])


async def _page(
    connection: Any, request: RowsRequest, days: Sequence[KeptDay], after: RowCursor | None
) -> LedgerRows:
    page = _Page(request.limit)
    total = sum(day.rows - day.dropped_rows for day in days)
    done = scanned = 0
    width = WINDOW_ROWS
    for day in days:
        begin = _begin(day, after)
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
                return page.answer(more, done, total)
            if len(matching) * 4 < width:
                width = min(width * 2, LARGEST_WINDOW_ROWS)
    return page.answer(None, done, total)


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
        """Add rows. If there was not room for all: up to which sequence everything is taken."""
        for record in records:
            sequence, *row = record
            size = len(msgspec.json.encode(row)) + 1
            if self._rows and (self.full or self._bytes + size > LARGEST_PAGE_BYTES):
                return sequence - 1
            self._rows.append(tuple(row))
            self._bytes += size
        return None

    def answer(self, more: RowCursor | None, done: int, total: int) -> LedgerRows:
        return LedgerRows(columns=FIELDS, rows=tuple(self._rows), next=more, done=done, total=total)


def _begin(day: KeptDay, after: RowCursor | None) -> int:
    """After which sequence of a day to look."""
    if after is None or day.number > after.day:
        return day.dropped_rows
    return day.rows if day.number < after.day else min(max(day.dropped_rows, after.sequence), day.rows)


def _filters(request: RowsRequest) -> tuple[str | None, str | None, str | None]:
    prefix = request.client_request_id_prefix
    return None if prefix is None else like_prefix(prefix), request.pool, request.tenant


def _moments(day: KeptDay, request: RowsRequest) -> tuple[datetime, datetime]:
    """From when to when rows of a day are wanted."""
    begin = day.begin if request.from_ns is None else max(day.begin, timestamp(request.from_ns))
    end = day.end if request.to_ns is None else min(day.end, timestamp(request.to_ns))
    return begin, end
