"""Finding one request's events in a stream, or files of it, ordered by time and knowing nothing of request ids.

The ledger knows when a request was; then only the events of that time are read. What it does not know (the
request is still under way, the accountant is away) is looked for in the stream, from now backwards.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokenfleet import subjects
from tokenfleet.bus import Bus, Stored
from tokenfleet.bus.codec import decode
from tokenfleet.contracts.ledger import LedgerEntries, LedgerLookup
from tokenfleet.contracts.requests import EVENT_TYPES, Ended, Event, Submitted
from tokenfleet.errors import RemoteError, TokenFleetError, UnavailableError
from tokenfleet.event_log import LoggedEvent, read_log
from tokenfleet.recorded import Recorded

LOOKUP_TIMEOUT_S = 5.0
FIRST_WINDOW_S = 10.0
WINDOW_GROWTH = 6.0
CLOCK_MARGIN_S = 5.0
"""By how much the clocks of ingress and of the NATS server may differ."""
SETTLING_S = 1.0
"""How long after its end a decision that was still under way may be recorded."""

Progress = Callable[[float], None]
"""Told how much is done, 0 to 1."""


class NotFoundError(TokenFleetError):
    """No request bears the id, or its events are not kept any more."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A request that bears the id."""

    request_id: str
    submitted_ns: int


async def find_events(
    bus: Bus, site: str, wanted: str, since_s: float, progress: Progress
) -> tuple[list[Recorded], tuple[str, ...]]:
    """The events of the latest request that bears an id, and the ids of the others that bear it.

    Args:
        bus: the operator's connection.
        site: whose ledger to ask.
        wanted: our request id, or the one the client sent as `x-request-id`.
        since_s: how far back to look for what the ledger does not know.
        progress: told how far a long search is.

    Raises:
        NotFoundError: there is none, or the stream does not hold its events any more.
        UnavailableError: NATS does not answer.
    """
    sightings = await _in_ledger(bus, site, wanted)
    in_ledger = bool(sightings)
    if not in_ledger:
        sightings = await _in_stream(bus, wanted, since_s, progress)
    if not sightings:
        raise NotFoundError(
            f"No request {wanted} is in the ledger, nor among what was submitted in the last {_span(since_s)}. "
            "Check the id; look further back with --since."
        )
    latest, *others = sightings
    events = await events_of(bus, latest, progress)
    if not events:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(latest.submitted_ns / 1e9))
        raise NotFoundError(
            f"Request {latest.request_id} was submitted at {at}, and the stream does not hold its events any "
            "more. What became of it is still in the ledger: `tokenfleet ledger report`."
        )
    return events, tuple(sighting.request_id for sighting in others)


def find_events_in_files(paths: Sequence[Path], wanted: str) -> tuple[list[Recorded], tuple[str, ...]]:
    """The same from files of exported events.

    Raises:
        NotFoundError: they have none.
        EventLogError: one is not such a file, or is damaged.
    """
    marker = wanted.encode()
    found: dict[str, Sighting] = {}
    for path in paths:
        for logged in read_log(path):
            if marker in logged.data and (sighting := _sighting(logged, wanted)):
                found[sighting.request_id] = sighting
    if not found:
        names = ", ".join(str(path) for path in paths)
        raise NotFoundError(f"No request {wanted} is in {names}. Check the id; name other files.")
    latest, *others = _latest_first(found)
    events = [
        event
        for path in paths
        for logged in read_log(path)
        if (event := _event_of(latest.request_id, logged))
    ]
    return sorted(events, key=lambda event: event.time_ns), tuple(each.request_id for each in others)


async def _in_ledger(bus: Bus, site: str, wanted: str) -> list[Sighting]:
    subject = subjects.ledger_lookup(site)
    try:
        found = await bus.request(subject, LedgerLookup(id=wanted), LedgerEntries, LOOKUP_TIMEOUT_S)
    except (UnavailableError, RemoteError):
        return []  # the stream is the truth; the ledger only saves time
    return [Sighting(entry.request_id, entry.submitted_ns) for entry in found.entries]


async def _in_stream(bus: Bus, wanted: str, since_s: float, progress: Progress) -> list[Sighting]:
    """From now backwards, in windows that grow: most questions are about what has just happened."""
    filters = [subjects.ALL_SUBMITTED, *subjects.TERMINAL_SUBJECTS]
    now_ns = end_ns = time.time_ns()
    window_s = FIRST_WINDOW_S
    while (looked_s := (now_ns - end_ns) / 1e9) < since_s:
        progress(looked_s / since_s)
        start_ns = max(end_ns - round(window_s * 1e9), now_ns - round(since_s * 1e9))
        last_ns = None if end_ns == now_ns else end_ns
        if found := await _in_window(bus, wanted, filters, start_ns, last_ns):
            return found
        end_ns = start_ns
        window_s *= WINDOW_GROWTH
    return []


async def _in_window(
    bus: Bus, wanted: str, filters: Sequence[str], start_ns: int, end_ns: int | None
) -> list[Sighting]:
    marker = wanted.encode()
    found: dict[str, Sighting] = {}
    async for stored in bus.read_stored(subjects.STREAM_REQUESTS, filters, start_ns):
        if end_ns is not None and stored.time_ns >= end_ns:
            break
        if marker in stored.data and (sighting := _sighting(stored, wanted)):
            found[sighting.request_id] = sighting
    return _latest_first(found)


def _latest_first(found: dict[str, Sighting]) -> list[Sighting]:
    return sorted(found.values(), key=lambda sighting: -sighting.submitted_ns)


def _sighting(stored: Stored | LoggedEvent, wanted: str) -> Sighting | None:
    event = _decode(stored)
    if isinstance(event, Submitted):
        ids, submitted_ns = (event.request_id, event.request.client_request_id), event.time_ns
    elif isinstance(event, Ended):
        ids, submitted_ns = (event.request_id, event.client_request_id), event.submitted_ns
    else:
        return None
    return Sighting(event.request_id, submitted_ns) if wanted in ids else None


async def events_of(bus: Bus, sighting: Sighting, progress: Progress) -> list[Recorded]:
    """The events of a request that was seen; none if the stream does not hold them any more.

    Raises:
        UnavailableError: NATS does not answer.
    """
    from_ns = sighting.submitted_ns - round(CLOCK_MARGIN_S * 1e9)
    events: list[Recorded] = []
    last_ns: int | None = None
    read = 0
    async for stored in bus.read_stored(subjects.STREAM_REQUESTS, [subjects.ALL_REQUESTS], from_ns):
        if last_ns is not None and stored.time_ns > last_ns:
            break
        read += 1
        if read % 1_000 == 0:
            progress(read / (read + stored.left))
        recorded = _event_of(sighting.request_id, stored)
        if recorded is None:
            continue
        events.append(recorded)
        if isinstance(recorded.event, Ended) and recorded.event.outcome != subjects.LOST:
            # After `lost` its ingress may still say what really became of it, however late.
            last_ns = stored.time_ns + round(SETTLING_S * 1e9)
    return events


def _event_of(request_id: str, stored: Stored | LoggedEvent) -> Recorded | None:
    if f'"{request_id}"'.encode() not in stored.data:
        return None
    event = _decode(stored)
    if event is None or event.request_id != request_id:
        return None
    return Recorded(_kind(stored.subject), event, stored.time_ns)


def _kind(subject: str) -> str:
    return subject.split(".")[5]


def _decode(stored: Stored | LoggedEvent) -> Event | None:
    kind = EVENT_TYPES.get(_kind(stored.subject))
    try:
        return decode(stored.data, kind) if kind else None
    except (TokenFleetError, msgspec.MsgspecError):
        return None  # written by another version; the other events still tell the story


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
