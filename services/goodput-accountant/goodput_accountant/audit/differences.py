"""The ledger beside the rows rebuilt from its events: every row that is not the same."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import asyncpg

from goodput_accountant.appending import timestamp
from goodput_accountant.audit.scratch import ROW
from goodput_accountant.policy.chain import CANONICAL
from goodput_accountant.policy.comparison import DERIVED, Difference, compare

REBUILT, STORED = "r_", "l_"


def _same(schema: int) -> str:
    names = (*CANONICAL[schema], *DERIVED)
    rebuilt = ", ".join(f"r.{name}" for name in names)
    stored = ", ".join(f"l.{name}" for name in names)
    return f"WHEN {schema} THEN ({rebuilt}) IS NOT DISTINCT FROM ({stored})"


# Of several events about one revision of a request the first that was stored counts. Settled are those that the accountant has handled.
# What is the same is left out here; what is different is worked out by `compare`.
DIFFERENT = f"""
SELECT l.row_schema, {", ".join(f"r.{name} AS {REBUILT}{name}" for name in ROW)},
       {", ".join(f"l.{name} AS {STORED}{name}" for name in ROW)}
FROM (SELECT DISTINCT ON (request_id, revision) * FROM audit_rows ORDER BY request_id, revision, stored_ns, stored_sequence) AS r
FULL JOIN (
    SELECT row_schema, {", ".join(ROW)} FROM ledger
    WHERE ($1::timestamptz IS NULL OR submitted_at >= $1) AND ($2::timestamptz IS NULL OR submitted_at < $2)
) AS l USING (event_id)
WHERE CASE
    WHEN l.event_id IS NULL THEN r.stored_ns <= $3 AND r.stored_sequence <= $4
    WHEN r.event_id IS NULL THEN true
    ELSE NOT CASE l.row_schema {" ".join(_same(schema) for schema in CANONICAL)} ELSE false END
END
"""  # noqa: S608 - built only from the names of columns

EVERYTHING = 2**63 - 1


async def different(
    connection: asyncpg.Connection,
    from_ns: int | None,
    to_ns: int | None,
    *,
    settled_ns: int = EVERYTHING,
    settled_sequence: int = EVERYTHING,
) -> AsyncIterator[tuple[Difference, int]]:
    """Every difference, with when its request ended (Unix ns), in the order that Postgres finds them.

    Args:
        connection: in a transaction; `audit_rows` holds what the events make.
        from_ns: rows of requests submitted from here on.
        to_ns: and before here.
        settled_ns: an event that was stored later need not be in the ledger yet.
        settled_sequence: nor need one with a higher sequence in the stream.
    """
    arguments = (_bound(from_ns), _bound(to_ns), settled_ns, settled_sequence)
    async for record in connection.cursor(DIFFERENT, *arguments, prefetch=1_000):
        rebuilt, stored = _row(record, REBUILT), _row(record, STORED)
        difference = compare(rebuilt, stored, record["row_schema"])
        row = stored or rebuilt
        if difference is not None and row is not None:
            yield difference, row["ended_ns"]


def _bound(unix_ns: int | None) -> datetime | None:
    return None if unix_ns is None else timestamp(unix_ns)


def _row(record: Any, prefix: str) -> dict[str, Any] | None:
    if record[f"{prefix}event_id"] is None:
        return None
    row = {name: record[f"{prefix}{name}"] for name in ROW}
    missed: Sequence[str] | None = row["missed"]
    return row | {"missed": None if missed is None else tuple(missed)}
