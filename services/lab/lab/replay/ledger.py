"""What the ledger holds of a run, and waiting until it holds all of it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from lab.errors import ReplayError
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.ledger import Report, ReportRequest
from tokenfleet.errors import RemoteError, UnavailableError

POLL_S = 0.5


class Ledger(Protocol):
    """Where a run's rows are read from."""

    async def report(self, *, list_ids: bool) -> Report:
        """The rows of the run so far.

        Raises:
            UnavailableError: the accountant does not answer now.
        """
        ...


class BusLedger:
    """The goodput accountant of a site, asked over NATS."""

    def __init__(self, bus: Bus, site: str, run: str) -> None:
        self._bus = bus
        self._subject = subjects.ledger_report(site)
        self._prefix = f"{run}-"

    async def report(self, *, list_ids: bool) -> Report:
        request = ReportRequest(client_request_id_prefix=self._prefix, list_ids=list_ids)
        try:
            return await self._bus.request(self._subject, request, Report, timeout_s=10.0)
        except RemoteError as error:
            raise UnavailableError(f"the accountant could not report: {error}") from error


async def wait_for_rows(
    ledger: Ledger,
    rows: int,
    *,
    quiet_s: float,
    silence_patience_s: float,
    on_rows: Callable[[int], None] = lambda _: None,
    poll_s: float = POLL_S,
) -> Report:
    """The report, with ids, once the ledger holds `rows` rows or has grown none for `quiet_s` wall seconds.

    Raises:
        ReplayError: the accountant did not answer for `silence_patience_s`.
    """
    loop = asyncio.get_running_loop()
    seen = -1
    grown_s = answered_s = loop.time()
    while True:
        try:
            report = await ledger.report(list_ids=False)
            answered_s = loop.time()
            if report.total.ledger_rows != seen:
                seen, grown_s = report.total.ledger_rows, answered_s
                on_rows(seen)
            if seen >= rows or answered_s - grown_s >= quiet_s:
                return await ledger.report(list_ids=True)
        except UnavailableError as error:
            # A silent accountant is not a quiet ledger: start the quiet time over once it is back.
            grown_s = loop.time()
            if grown_s - answered_s >= silence_patience_s:
                raise ReplayError(
                    f"The ledger cannot be read: {error}. Is goodput-accountant running?"
                ) from error
        await asyncio.sleep(poll_s)
