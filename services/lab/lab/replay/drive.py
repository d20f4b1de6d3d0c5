"""Open-loop arrivals, and the accounting afterwards that leaves no request unexplained."""

import asyncio
from collections import Counter
from collections.abc import Iterable

import msgspec

from lab.replay.client import ReplayClient
from lab.replay.counters import Counters
from lab.replay.ledger import Ledger, wait_for_rows
from lab.replay.options import ReplayOptions
from lab.traces.model import Trace
from tokenfleet.contracts.ledger import Report


class Accounting(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's report of a run, and where it disagrees with what was sent."""

    report: Report
    missing: tuple[str, ...] = ()
    """Ids without a ledger row."""
    duplicated: tuple[str, ...] = ()
    """Ids with more than one."""

    @property
    def exact(self) -> bool:
        return not self.missing and not self.duplicated


async def send_all(
    client: ReplayClient, trace: Trace, speed: float, time_scale: float, counters: Counters
) -> None:
    """Send every request at its time, however the others fare, and wait for all the answers.

    A trace second lasts `1 / (speed * time_scale)` wall seconds.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    async with asyncio.TaskGroup() as group:
        for index, request in enumerate(trace.requests):
            delay_s = started_s + request.arrival_s / (speed * time_scale) - loop.time()
            # Yields even when late, so that a backlog of sends does not stop answers from being read.
            await asyncio.sleep(max(delay_s, 0.0))
            group.create_task(_send(client, trace, index, counters))
            counters.sent += 1


async def account(
    client: ReplayClient, ledger: Ledger, trace: Trace, options: ReplayOptions, counters: Counters
) -> Accounting:
    """Wait for the ledger's rows; resend, once, what it shows was never accepted; wait again.

    Only requests whose answer broke off, or never came, are resent: one that was answered and has no row was
    lost by the fleet, and stays missing.
    """
    report = await _wait(ledger, options, counters)
    listed = set(report.client_request_ids)
    unseen = [
        index
        for index, answer in counters.answers.items()
        if not answer.accepted and client.request_id(index) not in listed
    ]
    if unseen:
        counters.resent += len(unseen)
        await _resend(client, trace, unseen, counters)
        report = await _wait(ledger, options, counters)
    return _compare(report, [client.request_id(index) for index in range(len(trace.requests))])


async def _send(client: ReplayClient, trace: Trace, index: int, counters: Counters) -> None:
    counters.answers[index] = await client.send(index, trace.requests[index])


async def _resend(client: ReplayClient, trace: Trace, indices: Iterable[int], counters: Counters) -> None:
    async with asyncio.TaskGroup() as group:
        for index in indices:
            group.create_task(_send(client, trace, index, counters))


async def _wait(ledger: Ledger, options: ReplayOptions, counters: Counters) -> Report:
    def on_rows(rows: int) -> None:
        counters.rows = rows

    return await wait_for_rows(
        ledger,
        counters.offered,
        quiet_s=options.quiet_s,
        silence_patience_s=options.silence_patience_s,
        on_rows=on_rows,
    )


def _compare(report: Report, expected: list[str]) -> Accounting:
    rows = Counter(report.client_request_ids)
    return Accounting(
        report=report,
        missing=tuple(name for name in expected if not rows[name]),
        duplicated=tuple(name for name, count in rows.items() if count > 1),
    )
