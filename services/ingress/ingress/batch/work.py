"""The lines still to be run, shared by all ingresses: claimed with a lease, taken out with their results.

A line's row is deleted in the transaction that stores its result, so a line is either still to be run or has
exactly one result. Time is that of Postgres, so no clocks are compared.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ingress.batch.database import Database, unix_ns
from ingress.batch.files import copy_lines
from ingress.policy.batch.sharing import OpenBatch

MOST_PER_TENANT = 4
"""Batches of each tenant that are looked at when places are given, those due first."""

OPEN = """
SELECT * FROM (
    SELECT batch_id, tenant, endpoint, input_file_id, due_at,
           row_number() OVER (PARTITION BY tenant ORDER BY due_at, created_at) AS place
    FROM batch.batches b
    WHERE status = 'in_progress' AND due_at > now()
      AND EXISTS (SELECT 1 FROM batch.lines l WHERE l.batch_id = b.batch_id AND l.ready_at <= now())
) AS of_tenant WHERE place <= $1 ORDER BY due_at, batch_id
"""
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT line FROM batch.lines WHERE batch_id = $1 AND ready_at <= now()
    ORDER BY ready_at, line LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE batch.lines l SET owner = $3, ready_at = now() + $4 FROM picked
WHERE l.batch_id = $1 AND l.line = picked.line RETURNING l.line, l.refusals, l.failures
"""
READ = "SELECT line, data FROM batch.file_lines WHERE file_id = $1 AND line = ANY($2)"
# Whoever has a row locked is about to delete it.
RENEW = """
WITH mine AS MATERIALIZED (
    SELECT l.batch_id, l.line FROM unnest($1::text[], $2::int[]) AS running (batch_id, line)
    JOIN batch.lines l USING (batch_id, line) WHERE l.owner = $3 FOR UPDATE OF l SKIP LOCKED
)
UPDATE batch.lines l SET ready_at = now() + $4 FROM mine WHERE l.batch_id = mine.batch_id AND l.line = mine.line
"""
STILL_MINE = """
SELECT l.batch_id, l.line FROM unnest($1::text[], $2::int[]) AS running (batch_id, line)
JOIN batch.lines l USING (batch_id, line) JOIN batch.batches b USING (batch_id)
WHERE l.owner = $3 AND b.status = 'in_progress'
"""
# Before the lines, as everybody does who takes lines out: two of them cannot wait for each other in a circle.
LOCK_BATCHES = """
SELECT batch_id, output_file_id, error_file_id FROM batch.batches
WHERE batch_id = ANY($1) ORDER BY batch_id FOR UPDATE
"""
TAKE_OUT = """
DELETE FROM batch.lines l USING unnest($1::text[], $2::int[]) AS done (batch_id, line)
WHERE l.batch_id = done.batch_id AND l.line = done.line RETURNING l.batch_id, l.line
"""
COUNT = "UPDATE batch.batches SET completed = completed + $2, failed = failed + $3 WHERE batch_id = $1"
PUT_BACK = """
UPDATE batch.lines SET owner = NULL, ready_at = now() + $4, refusals = refusals + $5, failures = failures + $6
WHERE batch_id = $1 AND line = $2 AND owner = $3
"""

LineKey = tuple[str, int]
"""A batch and the number of a line of it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A line that this process may run until its lease ends."""

    line: int
    data: bytes
    refusals: int
    failures: int


@dataclass(frozen=True, slots=True)
class Result:
    """A line is done: `data` belongs into the output file if it succeeded, else into the error file."""

    key: LineKey
    succeeded: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class PutBack:
    """A line is to be tried again, by anybody, after a delay."""

    key: LineKey
    delay_s: float
    refused: bool = False
    failed: bool = False


class Work:
    """One process's part in the work. Each method raises UnavailableError when Postgres is away."""

    def __init__(self, database: Database, owner: str, lease_s: float) -> None:
        self._database = database
        self._owner = owner
        self._lease = timedelta(seconds=lease_s)

    async def open_batches(self) -> list[OpenBatch]:
        """Batches with lines that may be tried now, the first due first."""
        async with self._database.transaction() as connection:
            records = await connection.fetch(OPEN, MOST_PER_TENANT)
        return [
            OpenBatch(
                batch_id=record["batch_id"],
                tenant=record["tenant"],
                endpoint=record["endpoint"],
                input_file_id=record["input_file_id"],
                due_ns=unix_ns(record["due_at"]),
            )
            for record in records
        ]

    async def claim(self, batch: OpenBatch, lines: int) -> list[Claimed]:
        """At most so many lines of a batch."""
        async with self._database.transaction() as connection:
            claimed = await connection.fetch(CLAIM, batch.batch_id, lines, self._owner, self._lease)
            numbers = [record["line"] for record in claimed]
            data = dict(await connection.fetch(READ, batch.input_file_id, numbers))
        return [
            Claimed(record["line"], data[record["line"]], record["refusals"], record["failures"])
            for record in sorted(claimed, key=lambda record: record["line"])
        ]

    async def renew(self, keys: Iterable[LineKey]) -> None:
        """Begin the leases of these lines anew."""
        async with self._database.transaction() as connection:
            await connection.execute(RENEW, *_columns(keys), self._owner, self._lease)

    async def still_mine(self, keys: Iterable[LineKey]) -> set[LineKey]:
        """Those of the lines that are still this process's to run, of batches that are still to be run."""
        async with self._database.transaction() as connection:
            return {tuple(row) for row in await connection.fetch(STILL_MINE, *_columns(keys), self._owner)}

    async def settle(self, results: Sequence[Result], put_back: Sequence[PutBack]) -> None:
        """Store results and put lines back, all or nothing.

        The result of a line that is not to be run any more (another process was faster, or its batch is closed) is
        dropped.
        """
        async with self._database.transaction() as connection:
            if results:
                await self._store(connection, results)
            for line in sorted(put_back, key=lambda item: item.key):
                delay = timedelta(seconds=line.delay_s)
                await connection.execute(
                    PUT_BACK, *line.key, self._owner, delay, int(line.refused), int(line.failed)
                )

    async def _store(self, connection: Any, results: Sequence[Result]) -> None:
        by_key = {result.key: result for result in results}
        batches = await connection.fetch(LOCK_BATCHES, list({key[0] for key in by_key}))
        taken = [tuple(row) for row in await connection.fetch(TAKE_OUT, *_columns(by_key))]
        for batch_id, output_file_id, error_file_id in batches:
            mine = [by_key[key] for key in taken if key[0] == batch_id]
            good = [(result.key[1], result.data) for result in mine if result.succeeded]
            bad = [(result.key[1], result.data) for result in mine if not result.succeeded]
            await copy_lines(connection, output_file_id, good) if good else None
            await copy_lines(connection, error_file_id, bad) if bad else None
            await connection.execute(COUNT, batch_id, len(good), len(bad))


def _columns(keys: Iterable[LineKey]) -> tuple[list[str], list[int]]:
    listed = list(keys)
    return [key[0] for key in listed], [key[1] for key in listed]
