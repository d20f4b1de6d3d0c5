"""Answering report requests from the ledger."""

import asyncio

from goodput_accountant.ledger import Ledger, TooManyRowsError
from goodput_accountant.policy.report import build_report
from tokenfleet.contracts.ledger import Report, ReportRequest

# A NATS message holds 1 MiB by default; leave room for the figures.
LARGEST_ID_LIST_BYTES = 900_000


class Reports:
    """The handler of report requests."""

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
