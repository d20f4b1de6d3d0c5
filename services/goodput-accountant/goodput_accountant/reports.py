"""Answering what people ask of the ledger."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec

from goodput_accountant.ledger import Ledger, TooManyRowsError
from goodput_accountant.policy.report import Part, Shape, build_report, report_of
from goodput_accountant.policy.rollups import GROUP_KEYS
from goodput_accountant.policy.totals import Totals
from goodput_accountant.questions import BadQuestionError, check_report
from goodput_accountant.spans import Groups, Wanted, read_wanted, span_totals
from tokenfleet.contracts.ledger import LedgerEntries, LedgerLookup, Report, ReportRequest

# A NATS message holds 1 MiB by default; leave room for the envelope.
LARGEST_REPORT_BYTES = 1_000_000
LARGEST_LOOKUP = 20
EXACT_ROWS = 5_000
"""Up to so many rows a report is made from rows, although there are roll-ups: its percentiles are exact then."""


class Reports:
    """The handlers of reports and of lookups."""

    def __init__(self, ledger: Ledger, max_rows: int, prices: Callable[[], Mapping[str, float]]) -> None:
        self._ledger = ledger
        self._max_rows = max_rows
        self._prices = prices
        """Of a GPU-hour, as they are now."""

    async def answer(self, request: ReportRequest) -> Report:
        """The report: from rows where there are few, or where only rows tell; else from roll-ups and rows.

        Raises:
            BadQuestionError: the request contradicts itself, or what it asks for is no longer kept.
            TooManyRowsError: it covers more rows, groups or ids than one answer may.
            UnavailableError: Postgres is away.
        """
        prices = self._prices() if request.priced else {}
        check_report(request, prices)
        shape = Shape(group_by=request.group_by, sort=request.sort, limit=request.limit, prices=prices)
        totals = await self._totals(request)
        # In a thread: a large report must not hold up ingest.
        if totals is not None:
            report = await asyncio.to_thread(_report, totals, shape)
        else:
            rows = await self._ledger.report_rows(request, self._max_rows)
            report = await asyncio.to_thread(build_report, rows, shape, list_ids=request.list_ids)
        _check_size(report)
        return report

    async def lookup(self, request: LedgerLookup) -> LedgerEntries:
        """The latest requests that bear an id.

        Raises:
            UnavailableError: Postgres is away.
        """
        return LedgerEntries(entries=tuple(await self._ledger.lookup(request.id, LARGEST_LOOKUP)))

    async def _totals(self, request: ReportRequest) -> Groups | None:
        """The totals, unless the report is to be made from rows."""
        async with self._ledger.reading() as connection:
            wanted = await read_wanted(connection, request)
            if wanted is None:
                return None
            if not _needs_rows(request):
                totals = await span_totals(connection, request, wanted, self._max_rows)
                if totals is not None and (
                    wanted.dropped or sum(each.rows for each in totals.values()) > EXACT_ROWS
                ):
                    return totals
            _check_kept(request, wanted)
            return None


def _needs_rows(request: ReportRequest) -> bool:
    by_name = request.client_request_id_prefix is not None or request.list_ids
    return by_name or request.group_by not in GROUP_KEYS


def _check_kept(request: ReportRequest, wanted: Wanted) -> None:
    """A report by request ids without a time is about what is kept; any other is about all there was."""
    by_name = request.client_request_id_prefix is not None or request.list_ids
    if wanted.dropped and not (by_name and request.from_ns is None):
        raise BadQuestionError(
            f"Rows up to {wanted.dropped[-1].day} (UTC) are no longer kept, and this report needs rows: begin later, or "
            "at whole hours without request ids and not by instance."
        )


def _report(groups: Groups, shape: Shape) -> Report:
    total = Part(Totals.sum(groups.values()))
    return report_of(total, _parts(groups, 0), _parts(groups, 1), shape)


def _parts(groups: Groups, place: int) -> dict[str, Part]:
    """The totals by class (place 0) or by group (place 1)."""
    parts: dict[str, list[Totals]] = defaultdict(list)
    for key, totals in groups.items():
        parts[key[place]].append(totals)
    return {name: Part(Totals.sum(part)) for name, part in parts.items()}


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
