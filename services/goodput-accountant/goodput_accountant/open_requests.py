"""Requests that are not in the ledger although they were submitted long ago, in Postgres."""

from collections.abc import Sequence
from typing import Any

import msgspec

from goodput_accountant.appending import SAME_REQUEST, timestamp
from goodput_accountant.policy.lost import Submission
from tokenfleet.contracts.requests import Ended

ADD_CURSOR = (
    "INSERT INTO submissions_cursor (stream, created, sequence) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING"
)
HOLD_CURSOR = "SELECT created, sequence FROM submissions_cursor WHERE stream = $1 FOR UPDATE SKIP LOCKED"
MOVE_CURSOR = "UPDATE submissions_cursor SET created = $2, sequence = $3 WHERE stream = $1"
ADD = """
INSERT INTO open_requests AS there (request_id, submitted_ns, decide_ns, submission)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[])
ON CONFLICT (request_id) DO UPDATE SET decide_ns = greatest(there.decide_ns, excluded.decide_ns)
"""
HOLD_DUE = """
SELECT submission FROM open_requests WHERE decide_ns <= $1 AND ended IS NULL
ORDER BY decide_ns LIMIT $2 FOR UPDATE SKIP LOCKED
"""
PUT_OFF = "UPDATE open_requests SET decide_ns = $2 WHERE request_id = $1"
CLOSE = "UPDATE open_requests SET ended = $2 WHERE request_id = $1"
HOLD_CLOSED = (
    "SELECT request_id, ended FROM open_requests WHERE ended IS NOT NULL LIMIT $1 FOR UPDATE SKIP LOCKED"
)
FORGET = "DELETE FROM open_requests WHERE request_id = ANY($1::text[])"
BOOKED = """
SELECT DISTINCT request_id FROM ledger
WHERE request_id = ANY($1::text[]) AND submitted_at >= $2::timestamptz - $4::interval
  AND submitted_at <= $3::timestamptz + $4::interval
"""


class OpenRequests:
    """The table and its cursor within one transaction. What one accountant holds, others pass over."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def hold_cursor(self, stream: str, created: str) -> int | None:
        """Up to which sequence of a stream submissions have been looked at; None: another accountant is at it."""
        await self._connection.execute(ADD_CURSOR, stream, created)
        cursor = await self._connection.fetchrow(HOLD_CURSOR, stream)
        if cursor is None:
            return None
        return cursor["sequence"] if cursor["created"] == created else 0

    async def move_cursor(self, stream: str, created: str, sequence: int) -> None:
        await self._connection.execute(MOVE_CURSOR, stream, created, sequence)

    async def booked(self, asked: Sequence[Submission]) -> set[str]:
        """The ids of those that have any row in the ledger."""
        if not asked:
            return set()
        times = [each.time_ns for each in asked]
        span = timestamp(min(times)), timestamp(max(times)), SAME_REQUEST
        records = await self._connection.fetch(BOOKED, [each.request_id for each in asked], *span)
        return {record["request_id"] for record in records}

    async def add(self, due: Sequence[tuple[Submission, int]]) -> None:
        """Keep requests and when they are to be decided; of one that is there the later time counts."""
        once: dict[str, tuple[Submission, int]] = {}
        for asked, decide_ns in due:
            known = once.get(asked.request_id)
            once[asked.request_id] = (asked, max(decide_ns, known[1]) if known else decide_ns)
        values = [
            (asked.request_id, asked.time_ns, decide_ns, msgspec.json.encode(asked))
            for asked, decide_ns in once.values()
        ]
        if values:
            await self._connection.execute(ADD, *map(list, zip(*values, strict=True)))

    async def hold_due(self, now_ns: int, most: int) -> list[Submission]:
        """Some that are to be decided now, the longest due first."""
        records = await self._connection.fetch(HOLD_DUE, now_ns, most)
        return [msgspec.json.decode(record["submission"], type=Submission) for record in records]

    async def put_off(self, request_id: str, decide_ns: int) -> None:
        await self._connection.execute(PUT_OFF, request_id, decide_ns)

    async def close(self, ended: Ended) -> None:
        """Fix what will be said of a request's end."""
        await self._connection.execute(CLOSE, ended.request_id, msgspec.json.encode(ended))

    async def hold_closed(self, most: int) -> list[Ended]:
        """Some whose end is fixed and may not have been published."""
        records = await self._connection.fetch(HOLD_CLOSED, most)
        return [msgspec.json.decode(record["ended"], type=Ended) for record in records]

    async def forget(self, request_ids: Sequence[str]) -> None:
        await self._connection.execute(FORGET, request_ids)
