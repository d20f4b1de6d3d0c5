"""Rows of the ledger, page by page from the accountant into a file."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec

from goodput_accountant.reporting.row_files import ExportError, row_file
from goodput_accountant.reporting.selection import NOTHING
from tokenfleet.contracts.ledger import LedgerRows, RowsRequest
from tokenfleet.errors import RemoteError, UnavailableError

PAGE_ROWS = 5_000
"""As many as fit a message come, at most so many."""
TRIES = 5
RETRY_S = 1.0

Ask = Callable[[RowsRequest], Awaitable[LedgerRows]]
Progress = Callable[[str, float | None], None]


def make_room(out: Path, *, replace: bool) -> None:
    """See that a file can be written there.

    Raises:
        ExportError: it exists and is not to be replaced, or its folder cannot be made.
    """
    if out.exists() and not replace:
        raise ExportError(f"{out} exists already. Name another --out, or --replace to write it anew.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{out.parent} cannot be made a folder: {error.strerror}.") from error


async def export_rows(ask: Ask, request: RowsRequest, out: Path, progress: Progress) -> int:
    """Write the rows asked for into a file, as its name says; how many there were.

    Args:
        ask: asks the accountant for one page.
        request: which rows.
        out: the file.
        progress: told what is done.

    Raises:
        ExportError: there are no rows, or the file cannot be written.
        UnavailableError, RemoteError: the accountant or Postgres is away, or refuses the question.
    """
    rows = 0
    async with aclosing(_pages(ask, request)) as pages:
        first = await anext(pages)
        with row_file(out, first.columns) as file:
            page = first
            while page is not None:
                file.add(page.rows)
                rows += len(page.rows)
                progress(f"{rows:,} rows", page.done / page.total if page.total else None)
                page = await anext(pages, None)
            if not rows:
                raise ExportError(f"{NOTHING} No file was written.")
    return rows


async def _pages(ask: Ask, request: RowsRequest) -> AsyncGenerator[LedgerRows]:
    """Every page; the next one is on its way while one is written."""
    coming = asyncio.ensure_future(_patiently(ask, request))
    try:
        while True:
            page = await coming
            if page.next is None:
                yield page
                return
            request = msgspec.structs.replace(request, after=page.next)
            coming = asyncio.ensure_future(_patiently(ask, request))
            yield page
    finally:
        coming.cancel()


async def _patiently(ask: Ask, request: RowsRequest) -> LedgerRows:
    """One page; an accountant that restarts in the middle of a long export does not end it."""
    for tried in range(1, TRIES + 1):
        try:
            return await ask(request)
        except (UnavailableError, RemoteError) as error:
            passing = isinstance(error, UnavailableError) or error.kind == UnavailableError.__name__
            if tried == TRIES or not passing or request.after is None:
                raise
            await asyncio.sleep(RETRY_S * tried)
    raise AssertionError("the last try returns or raises")
