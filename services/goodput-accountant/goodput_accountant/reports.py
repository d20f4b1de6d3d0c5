"""Answering what people ask of the ledger."""

import asyncio

from goodput_accountant.ledger import Ledger, TooManyRowsError
from goodput_accountant.policy.report import build_report
from tokenfleet.contracts.ledger import LedgerEntries, LedgerLookup, Report, ReportRequest

# A NATS message holds 1 MiB by default; leave room for the figures.
LARGEST_ID_LIST_BYTES = 900_000
LARGEST_LOOKUP = 20


class Reports:
    """The handlers of reports and of lookups."""

    def __init__(self, ledger: Ledger, max_rows: int) -> None:
        self._ledger = ledger
        self._max_rows = max_rows

    async def answer(self, request: ReportRequest) -> Report:
        """The report.

        Raises:
            TooManyRowsError: it covers more rows, or ids, than one answer may.
            UnavailableError: Postgres is away.
        """
        rows = await self._ledger.report_rows(request, self._max_rows)
        # In a thread: a large report must not hold up ingest.
        report = await asyncio.to_thread(build_report, rows, list_ids=request.list_ids)
        size = sum(len(name) + 3 for name in report.client_request_ids)
        if size > LARGEST_ID_LIST_BYTES:
            raise TooManyRowsError(
                f"The {len(report.client_request_ids)} request ids do not fit one message. "
                "Ask for fewer: by a longer prefix or a shorter time."
            )
        return report

    async def lookup(self, request: LedgerLookup) -> LedgerEntries:
        """The latest requests that bear an id.

        Raises:
            UnavailableError: Postgres is away.
        """
        return LedgerEntries(entries=tuple(await self._ledger.lookup(request.id, LARGEST_LOOKUP)))
