"""One request's whole story: what was recorded of it, and what the ledger made of that."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.chain import CANONICAL, FIELDS, canonical, link
from goodput_accountant.policy.story import Line, judged, tell
from tokenfleet.bus import Bus
from tokenfleet.contracts.requests import Ended
from tokenfleet.errors import ContractError
from tokenfleet.recorded import Recorded
from tokenfleet.request_story import (
    NotFoundError,
    Progress,
    Sighting,
    events_of,
    find_events,
    find_events_in_files,
)

MOST_REQUESTS = 20

ROWS = f"""
SELECT row_schema, sequence, chain_hash, submitted_at, {", ".join(FIELDS)} FROM ledger
WHERE request_id = $1 OR client_request_id = $1 ORDER BY submitted_at DESC, request_id, revision LIMIT $2
"""  # noqa: S608 - built only from the names of columns
BEFORE = """
SELECT chain_hash FROM ledger WHERE submitted_at >= $1 AND submitted_at < $2 AND sequence = $3
"""
DAY = "SELECT rows, dropped_rows, dropped_head FROM ledger_days WHERE day = $1"


class Booked(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ledger."""

    event_id: str
    revision: int
    counts: bool
    """False: a later row corrects it."""
    outcome: str
    verdict: str
    """What it was worth, and why."""
    day: str
    sequence: int
    """Its position in the chain of its day."""
    rows: int | None
    """Of that chain; None: the day has no record."""
    chain_hash: str
    follows: bool | None
    """Whether its hash follows from the row before it; None: that row is not there any more."""
    as_rules_say: bool | None
    """Whether it is what the rules make of its event; None: that event is not there any more."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    request_id: str
    client_request_id: str | None
    first_ns: int | None
    """When its first event was recorded, Unix ns."""
    lines: Sequence[Line]
    booked: Sequence[Booked]
    others: Sequence[str]
    """Other requests that bear the id, the latest first."""
    notes: Sequence[str]


class Found(msgspec.Struct, frozen=True):
    """A request's rows, with the hash before each and the number of rows of its day."""

    row: LedgerRow
    schema: int
    sequence: int
    chain_hash: bytes
    day: datetime
    hash_before: bytes | None
    rows_of_day: int | None


async def rows_of(connection: asyncpg.Connection, wanted: str) -> tuple[list[Found], tuple[str, ...]]:
    """The ledger's rows of the latest request that bears an id, and the ids of the others that bear it.

    Args:
        connection: to the ledger.
        wanted: our request id, or the one that the client gave.
    """
    records = await connection.fetch(ROWS, wanted, MOST_REQUESTS)
    ids = list(dict.fromkeys(record["request_id"] for record in records))
    found = [await _found(connection, record) for record in records if record["request_id"] == ids[0]]
    return found, tuple(ids[1:])


async def _found(connection: asyncpg.Connection, record: Any) -> Found:
    day = record["submitted_at"].astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    head = await connection.fetchrow(DAY, day.date())
    sequence = record["sequence"]
    if head is not None and sequence == head["dropped_rows"] + 1:
        before = bytes(head["dropped_head"])
    else:
        before = await connection.fetchval(BEFORE, day, day + timedelta(days=1), sequence - 1)
    values = {name: record[name] for name in FIELDS}
    return Found(
        row=LedgerRow(**{**values, "missed": tuple(values["missed"])}),
        schema=record["row_schema"],
        sequence=sequence,
        chain_hash=bytes(record["chain_hash"]),
        day=day,
        hash_before=before,
        rows_of_day=head["rows"] if head else None,
    )


async def events_for(
    bus: Bus, site: str, wanted: str, found: Sequence[Found], since_s: float, progress: Progress
) -> tuple[list[Recorded], tuple[str, ...]]:
    """The stream's events of a request: of the one that the ledger has, else searched for.

    Raises:
        NotFoundError: neither the ledger nor the stream has it.
        UnavailableError: NATS went away.
    """
    if found:
        row = found[0].row
        return await events_of(bus, Sighting(row.request_id, row.submitted_ns), progress), ()
    return await find_events(bus, site, wanted, since_s, progress)


def events_in_files(
    paths: Sequence[Path], wanted: str, found: Sequence[Found]
) -> tuple[list[Recorded], tuple[str, ...]]:
    """The same from files of exported events.

    Raises:
        NotFoundError: neither the ledger nor the files have it.
        EventLogError: a file is damaged.
    """
    try:
        return find_events_in_files(paths, found[0].row.request_id if found else wanted)
    except NotFoundError:
        if not found:
            raise
        return [], ()


def story(
    events: Sequence[Recorded],
    found: Sequence[Found],
    others: Sequence[str],
    notes: Sequence[str],
    time_scale: float,
) -> Story:
    """Put together what was found; at least an event or a row."""
    newest = max((each.row.revision for each in found), default=0)
    ends = [each.event for each in events if isinstance(each.event, Ended)]
    said = list(notes)
    if not events:
        said.append("the events of this request are not kept any more; name exported files with --events")
    if not ends and events:
        said.append("it is under way: no end is recorded")
    if not found and ends:
        said.append("the ledger has no row of it (yet)")
    return Story(
        request_id=events[0].event.request_id if events else found[0].row.request_id,
        client_request_id=_client_id(events, found),
        first_ns=events[0].time_ns if events else None,
        lines=tell(events, time_scale),
        booked=[_booked(each, ends, each.row.revision == newest) for each in found],
        others=others,
        notes=said,
    )


def _booked(found: Found, ends: Sequence[Ended], counts: bool) -> Booked:
    row = found.row
    follows = None
    if found.hash_before is not None and found.schema in CANONICAL:
        content = canonical(msgspec.structs.asdict(row), found.schema)
        follows = link(found.hash_before, [content])[0] == found.chain_hash
    return Booked(
        event_id=row.event_id,
        revision=row.revision,
        counts=counts,
        outcome=row.outcome,
        verdict=judged(row),
        day=found.day.date().isoformat(),
        sequence=found.sequence,
        rows=found.rows_of_day,
        chain_hash=found.chain_hash.hex(),
        follows=follows,
        as_rules_say=_as_rules_say(found, ends),
    )


def _as_rules_say(found: Found, ends: Sequence[Ended]) -> bool | None:
    ended = next((each for each in ends if each.event_id == found.row.event_id), None)
    if ended is None:
        return None
    try:
        rebuilt = account(ended)
    except ContractError:
        return False
    names = CANONICAL.get(found.schema, FIELDS)
    return all(getattr(rebuilt, name) == getattr(found.row, name) for name in names)


def _client_id(events: Sequence[Recorded], found: Sequence[Found]) -> str | None:
    if found:
        return found[0].row.client_request_id
    for recorded in events:
        spec = getattr(recorded.event, "request", None)
        client = spec.client_request_id if spec else getattr(recorded.event, "client_request_id", None)
        if client:
            return client
    return None
