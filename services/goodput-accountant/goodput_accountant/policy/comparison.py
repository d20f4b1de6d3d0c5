"""One row of the ledger beside the row that the rules make of its event."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from goodput_accountant.policy.chain import CANONICAL

DifferenceKind = Literal["missing", "unknown", "changed"]

DERIVED = ("submitted_at", "ended_at")
"""Columns that say once more what others say, for the database's sake. No hash covers them, and reports choose by them."""


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """What a column should hold and what it holds."""

    should_be: object
    is_: object = msgspec.field(name="is")


class Difference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row that is not what the events make of it.

    missing: an event has no row. unknown: a row has no event. changed: columns differ.
    """

    kind: DifferenceKind
    event_id: str
    request_id: str
    submitted_ns: int
    columns: Mapping[str, Values] = {}


class Covered(msgspec.Struct, frozen=True, kw_only=True):
    """From when (inclusive) to when (exclusive) all events are known, Unix ns; None: to the end of time."""

    from_ns: int
    to_ns: int | None = None


def compare(
    rebuilt: Mapping[str, object] | None, stored: Mapping[str, object] | None, schema: int | None
) -> Difference | None:
    """What is different, if anything is.

    Args:
        rebuilt: what the rules make of the event, by column; None if there is no event.
        stored: what the ledger has; None if it has no such row.
        schema: of the stored row, which says what its columns are; None if it has no such row.
    """
    row = stored or rebuilt
    if row is None:
        return None
    columns: dict[str, Values] = {}
    if rebuilt is not None and stored is not None:
        names = CANONICAL.get(schema, ()) if schema is not None else ()
        columns = {
            name: Values(should_be=rebuilt[name], is_=stored[name])
            for name in (*names, *DERIVED)
            if rebuilt[name] != stored[name]
        }
        if not names:
            columns["row_schema"] = Values(should_be=sorted(CANONICAL), is_=schema)
        if not columns:
            return None
    kind: DifferenceKind = "changed" if columns else "missing" if stored is None else "unknown"
    event_id, request_id, submitted_ns = row["event_id"], row["request_id"], row["submitted_ns"]
    assert isinstance(event_id, str) and isinstance(request_id, str) and isinstance(submitted_ns, int)
    return Difference(
        kind=kind, event_id=event_id, request_id=request_id, submitted_ns=submitted_ns, columns=columns
    )


def covered(ended_ns: int, spans: Iterable[Covered]) -> bool:
    """Whether the event of a request that ended then must be among the known ones."""
    return any(span.from_ns <= ended_ns and (span.to_ns is None or ended_ns < span.to_ns) for span in spans)
