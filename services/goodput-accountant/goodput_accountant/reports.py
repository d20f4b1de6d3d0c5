"""Answering what people ask of the ledger."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from goodput_accountant.ledger import Ledger, TooManyRowsError
from goodput_accountant.policy.report import Shape, build_report
from goodput_accountant.questions import check_report
from tokenfleet.contracts.ledger import LedgerEntries, LedgerLookup, Report, ReportRequest

# A NATS message holds 1 MiB by default; leave room for the envelope.
LARGEST_REPORT_BYTES = 1_000_000
LARGEST_LOOKUP = 20


class Reports:
    """The handlers of reports and of lookups."""

    def __init__(self, ledger: Ledger, max_rows: int, prices: Callable[[], Mapping[str, float]]) -> None:
        self._ledger = ledger
        self._max_rows = max_rows
        self._prices = prices
        """Of a GPU-hour, as they are now."""

    async def answer(self, request: ReportRequest) -> Report:
        """The report.

        Raises:
            BadQuestionError: the request contradicts itself, or what it asks for is no longer kept.
            TooManyRowsError: it covers more rows, groups or ids than one answer may.
            UnavailableError: Postgres is away.
        """
        prices = self._prices() if request.priced else {}
        check_report(request, prices)
        shape = Shape(group_by=request.group_by, sort=request.sort, limit=request.limit, prices=prices)
        rows = await self._ledger.report_rows(request, self._max_rows)
        # In a thread: a large report must not hold up ingest.
        report = await asyncio.to_thread(build_report, rows, shape, list_ids=request.list_ids)
        _check_size(report)
        return report

    async def lookup(self, request: LedgerLookup) -> LedgerEntries:
        """The latest requests that bear an id.

        Raises:
            UnavailableError: Postgres is away.
        """
        return LedgerEntries(entries=tuple(await self._ledger.lookup(request.id, LARGEST_LOOKUP)))


def _check_size(report: Report) -> None:
    if len(msgspec.json.encode(report)) <= LARGEST_REPORT_BYTES:
        return
    if report.client_request_ids:
        raise TooManyRowsError(
            f"The {len(report.client_request_ids):,} request ids do not fit one message. "
            "Ask for fewer: by a longer prefix or a shorter time."
        )
    raise TooManyRowsError(
        f"The figures of {len(report.groups):,} groups do not fit one message. Ask for the first of them by a limit, or "
        "for a shorter time."
    )
