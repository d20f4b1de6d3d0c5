"""The ledger rebuilt from its events and compared, and its chains recomputed.

What is still on its way is no difference. From the stream, the ledger must have what the accountant had acknowledged
(that is: committed) when it was looked at, and the events must have what the ledger had: those stored while the first
ones were read are read, too, after the ledger's state was fixed.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import asyncpg
import msgspec

from goodput_accountant.audit.chains import Chains, date_of
from goodput_accountant.audit.differences import EVERYTHING, different
from goodput_accountant.audit.options import moment
from goodput_accountant.audit.scratch import Scratch, Unbookable
from goodput_accountant.main import DURABLE
from goodput_accountant.policy.chain_check import Break
from goodput_accountant.policy.comparison import Covered, Difference, covered
from tokenfleet import subjects
from tokenfleet.bus import Bus, Stored
from tokenfleet.errors import UnavailableError
from tokenfleet.event_log import LoggedEvent, Span, read_log_and_spans

CLOCK_MARGIN_NS = 5 * 10**9
"""By how much the clocks of ingress and of the NATS server may differ."""
EDGE_NS = 60 * 10**9
"""How long after its end a request's event may be stored and still be looked for in the files that cover its end."""
SETTLING_NS = 10 * 10**9
"""From files, an event must be in the ledger after so long."""
LOOK_EVERY = 2_000
DROPPED_DAYS = "SELECT day FROM ledger_days WHERE dropped_rows > 0"
POLL_S = 0.2
TERMINAL = frozenset((*subjects.OUTCOMES, subjects.LOST))

Progress = Callable[[str, float | None], None]
"""Told the stage and how much of it is done, 0 to 1, where that is known."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Requests submitted from a moment (inclusive) to another (exclusive), Unix ns; None: without a bound."""

    from_ns: int | None = None
    to_ns: int | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found."""

    window: Window
    events: int
    """Terminal events read."""
    differences: Sequence[Difference]
    breaks: Sequence[Break]
    days: int
    """Chains that were checked, and the rows of them."""
    rows: int
    unbookable: int
    """Events that no rule makes a row of, and why, for some of them."""
    unbookable_examples: Sequence[Unbookable]
    uncovered: int
    """Rows without an event that are not verifiable: the events of when they ended are not all there."""
    dropped: int
    """Events whose rows were dropped: only the chain's end is there to be checked."""
    notes: Sequence[str]
    """What the reader must know to judge this."""

    @property
    def clean(self) -> bool:
        return not self.differences and not self.breaks


async def verify_stream(
    connection: asyncpg.Connection, bus: Bus, window: Window, wait_s: float, progress: Progress
) -> Verdict:
    """Compare the ledger with what the stream holds.

    Raises:
        UnavailableError: NATS or Postgres went away.
    """
    scratch = Scratch(connection, window.from_ns, window.to_ns)
    await scratch.create()
    begin_ns = max(0, (window.from_ns or 0) - CLOCK_MARGIN_NS)
    last = await _read_stream(bus, scratch, begin_ns, 0, lambda done: progress("reading events", done))
    notes: list[str] = []
    settled = await _wait_settled(bus, last.sequence if last else 0, wait_s, progress, notes)
    await scratch.analyze()
    async with connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM ledger_days")  # fixes what this transaction sees
        if last:
            await _read_stream(bus, scratch, last.time_ns, last.sequence)
        else:
            await _read_stream(bus, scratch, begin_ns, 0)
        state = await bus.stream_state(subjects.STREAM_REQUESTS)
        first_ns = state.first_ns if state.messages else time.time_ns()
        spans = [Covered(from_ns=first_ns + CLOCK_MARGIN_NS)]
        verdict = await _check(connection, scratch, window, spans, progress, notes, settled_sequence=settled)
    if verdict.uncovered:
        notes.append(
            f"not verifiable from the stream: {verdict.uncovered:,} rows of requests that ended before {moment(first_ns)}, "
            "where it begins; give the exported files with --events. Their chain was checked"
        )
    return verdict


async def verify_files(
    connection: asyncpg.Connection, paths: Sequence[Path], window: Window, progress: Progress
) -> Verdict:
    """Compare the ledger with what exported files hold.

    Raises:
        EventLogError: a file is not such a file, or is damaged.
        UnavailableError: Postgres went away.
    """
    scratch = Scratch(connection, window.from_ns, window.to_ns)
    await scratch.create()
    spans: list[Covered] = []
    for number, path in enumerate(paths):
        progress("reading events", number / len(paths))
        for item in read_log_and_spans(path):
            if isinstance(item, Span):
                spans.append(Covered(from_ns=item.from_ns, to_ns=item.to_ns))
            elif _terminal(item.subject):
                await scratch.add(item)
    await scratch.flush()
    await scratch.analyze()
    notes: list[str] = []
    certain = _certain(spans)
    async with connection.transaction(isolation="repeatable_read"):
        settled_ns = time.time_ns() - SETTLING_NS
        verdict = await _check(connection, scratch, window, certain, progress, notes, settled_ns=settled_ns)
    if verdict.uncovered:
        covering = ", ".join(f"{moment(span.from_ns)} to {moment(span.to_ns or 0)}" for span in joined(spans))
        notes.append(
            f"not verifiable from these files: {verdict.uncovered:,} rows of requests that ended outside of what they cover "
            f"({covering}), or within its last minute; give the files of then as well. Their chain was checked"
        )
    return verdict


async def _check(
    connection: asyncpg.Connection,
    scratch: Scratch,
    window: Window,
    spans: Sequence[Covered],
    progress: Progress,
    notes: list[str],
    *,
    settled_ns: int = EVERYTHING,
    settled_sequence: int = EVERYTHING,
) -> Verdict:
    differences: list[Difference] = []
    uncovered = dropped = 0
    dropped_days = {record["day"] for record in await connection.fetch(DROPPED_DAYS)}
    progress("comparing rows", None)
    found = different(
        connection, window.from_ns, window.to_ns, settled_ns=settled_ns, settled_sequence=settled_sequence
    )
    async for difference, ended_ns in found:
        if difference.kind == "unknown" and not covered(ended_ns, spans):
            uncovered += 1
        elif difference.kind == "missing" and date_of(difference.submitted_ns) in dropped_days:
            dropped += 1
        else:
            differences.append(difference)
    if dropped:
        notes.append(
            f"dropped: the ledger no longer keeps the rows of {dropped:,} of these events, only roll-ups and the end of their "
            "days' chains, from which later rows go on"
        )
    chains = Chains(connection)
    breaks = [
        each
        async for each in chains.breaks(
            window.from_ns, window.to_ns, lambda done: progress("checking the chains", done)
        )
    ]
    return Verdict(
        window=window,
        events=scratch.events,
        differences=sorted(differences, key=lambda each: (each.submitted_ns, each.event_id)),
        breaks=breaks,
        days=chains.days,
        rows=chains.rows,
        unbookable=scratch.unbookable,
        unbookable_examples=scratch.unbookable_examples,
        uncovered=uncovered,
        dropped=dropped,
        notes=notes,
    )


async def _read_stream(
    bus: Bus,
    scratch: Scratch,
    from_ns: int,
    after_sequence: int,
    progress: Callable[[float], None] = lambda done: None,
) -> Stored | None:
    """Take in the terminal events up to those stored now; returns the last one."""
    last: Stored | None = None
    read = 0
    stored_events = bus.read_stored(subjects.STREAM_REQUESTS, subjects.TERMINAL_SUBJECTS, from_ns)
    async with aclosing(stored_events):
        async for stored in stored_events:
            if stored.sequence <= after_sequence:
                continue
            await scratch.add(LoggedEvent(stored.subject, stored.time_ns, stored.sequence, stored.data))
            last = stored
            read += 1
            if read % LOOK_EVERY == 0:
                progress(read / (read + stored.left))
    await scratch.flush()
    return last


async def _wait_settled(bus: Bus, sequence: int, wait_s: float, progress: Progress, notes: list[str]) -> int:
    """Up to which event the ledger must be complete: the last one read, once the accountant has handled it."""
    deadline_s = time.monotonic() + wait_s
    progress("waiting for the accountant", None)
    while True:
        try:
            handled = await bus.acknowledged_to(subjects.STREAM_REQUESTS, DURABLE)
        except UnavailableError as error:
            notes.append(
                f"no event is expected in the ledger: no accountant has ever read the stream ({error})"
            )
            return 0
        if handled >= sequence:
            return sequence
        if time.monotonic() >= deadline_s:
            notes.append(
                f"the accountant is behind: after {wait_s:g} s it had handled events up to number {handled:,} of "
                f"{sequence:,}; later ones need not be in the ledger yet"
            )
            return handled
        await asyncio.sleep(POLL_S)


def joined(spans: Sequence[Covered]) -> list[Covered]:
    """The same spans, those that touch made one."""
    whole: list[Covered] = []
    for span in sorted(spans, key=lambda each: each.from_ns):
        if whole and span.from_ns <= (whole[-1].to_ns or 0):
            to_ns = max(whole[-1].to_ns or 0, span.to_ns or 0)
            whole[-1] = Covered(from_ns=whole[-1].from_ns, to_ns=to_ns)
        else:
            whole.append(span)
    return whole


def _certain(spans: Sequence[Covered]) -> list[Covered]:
    """Of requests that ended here the events must be there, since they are stored somewhat later."""
    return [
        Covered(from_ns=span.from_ns + CLOCK_MARGIN_NS, to_ns=(span.to_ns or 0) - EDGE_NS)
        for span in joined(spans)
    ]


def _terminal(subject: str) -> bool:
    return subject.split(".")[-1] in TERMINAL
