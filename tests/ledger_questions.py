"""What people ask of a month's ledger."""

from ledger_months import DAYS

from goodput_accountant.ledger import Ledger
from goodput_accountant.reports import Reports
from goodput_accountant.rows import RowPages
from tokenfleet.contracts.ledger import (
    LedgerEntries,
    LedgerLookup,
    LedgerRows,
    Report,
    ReportRequest,
    RowsRequest,
)

SECOND_NS = 10**9
HOUR_NS = 3_600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
MONTH_NS = 1_788_220_800 * SECOND_NS
MONTH = (MONTH_NS, MONTH_NS + DAYS * DAY_NS)
HALF_NS = MONTH_NS + DAYS // 2 * DAY_NS
NOW_NS = MONTH[1] - 7 * 60 * SECOND_NS
"""A moment at which somebody asks for "the last hour"; nothing divides it."""


class Questions:
    """As the accountant's handlers answer them."""

    def __init__(self, ledger: Ledger) -> None:
        self._reports = Reports(ledger, 100_000, lambda: {"*": 2.5})
        self._pages = RowPages(ledger)

    def reports(self) -> dict[str, ReportRequest]:
        """Reports by what they are."""
        noon = MONTH_NS + 14 * DAY_NS + 12 * HOUR_NS
        return {
            "one tenant's month": ReportRequest(from_ns=MONTH[0], to_ns=MONTH[1], tenant="tenant-3"),
            "one tenant's last 29 days, to the second": ReportRequest(
                from_ns=NOW_NS - 29 * DAY_NS + SECOND_NS, to_ns=NOW_NS + SECOND_NS, tenant="tenant-3"
            ),
            "top tenants of the month by waste": ReportRequest(
                from_ns=MONTH[0], to_ns=MONTH[1], group_by="tenant", sort="waste", limit=10
            ),
            "top tenants of everything": ReportRequest(group_by="tenant", sort="goodput", limit=10),
            "one hour by class": ReportRequest(from_ns=noon, to_ns=noon + HOUR_NS),
            "the last hour by class, to the second": ReportRequest(
                from_ns=NOW_NS - HOUR_NS + SECOND_NS, to_ns=NOW_NS + SECOND_NS
            ),
            "the last day by pool, to the second": ReportRequest(
                from_ns=NOW_NS - DAY_NS + SECOND_NS, to_ns=NOW_NS + SECOND_NS, group_by="pool"
            ),
        }

    async def answer(self, request: ReportRequest) -> Report:
        return await self._reports.answer(request)

    async def lookup(self, wanted: str) -> LedgerEntries:
        return await self._reports.lookup(LedgerLookup(id=wanted))

    async def page(self) -> LedgerRows:
        """A page of one tenant's rows, from the middle of the month on."""
        return await self._pages.answer(RowsRequest(from_ns=HALF_NS, tenant="tenant-3"))
