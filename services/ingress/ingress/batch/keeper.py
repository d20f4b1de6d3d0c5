"""Moves batches along: validates them, and closes those that are done, due or cancelled.

Each step is one transaction that holds the batch's row, so of several ingresses one does it, and one that dies
leaves it to the others.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from ingress.batch.database import Database
from ingress.batch.files import copy_lines, new_file_id, read_page
from ingress.batch.objects import Record
from ingress.policy.batch.lines import CANCELLED, EXPIRED, LineChecker, LineError, too_many, unanswered

CLOSING_LINES = 2_000
"""Lines that are given up per step."""

NEXT = """
SELECT * FROM batch.batches b
WHERE status IN ('validating', 'finalizing', 'cancelling')
   OR (status = 'in_progress'
       AND (due_at <= now() OR NOT EXISTS (SELECT 1 FROM batch.lines l WHERE l.batch_id = b.batch_id)))
ORDER BY status = 'validating', due_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""
FILE = "SELECT bytes, lines FROM batch.files WHERE file_id = $1 AND state = 'ready'"
FAIL = "UPDATE batch.batches SET status = 'failed', failed_at = now(), errors = $2 WHERE batch_id = $1"
FORGET_LINES = "DELETE FROM batch.lines WHERE batch_id = $1"
ADD_RESULT_FILE = """
INSERT INTO batch.files (file_id, tenant, purpose, filename, state, expires_at)
VALUES ($1, $2, 'batch_output', $3, 'building', now() + $4)
"""
BEGIN = """
UPDATE batch.batches SET status = 'in_progress', in_progress_at = now(), total = $2,
    output_file_id = $3, error_file_id = $4
WHERE batch_id = $1
"""
FINALIZE = """
UPDATE batch.batches SET status = 'finalizing', finalizing_at = now(),
    closing_as = CASE WHEN EXISTS (SELECT 1 FROM batch.lines WHERE batch_id = $1) THEN 'expired' ELSE 'completed' END
WHERE batch_id = $1
"""
GIVE_UP = """
DELETE FROM batch.lines WHERE (batch_id, line) IN (
    SELECT batch_id, line FROM batch.lines WHERE batch_id = $1 ORDER BY line LIMIT $2)
RETURNING line, custom_id
"""
COUNT_FAILED = "UPDATE batch.batches SET failed = failed + $2 WHERE batch_id = $1"
SEAL = """
UPDATE batch.files SET state = 'ready', lines = sealed.lines, bytes = sealed.bytes, expires_at = now() + $2
FROM (SELECT count(*) AS lines, coalesce(sum(octet_length(data)), 0) AS bytes
      FROM batch.file_lines WHERE file_id = $1) AS sealed
WHERE file_id = $1 RETURNING sealed.lines
"""
DISCARD = "DELETE FROM batch.files WHERE file_id = $1"
CLOSE = """
UPDATE batch.batches SET status = closing_as, output_file_id = $2, error_file_id = $3,
    completed_at = CASE closing_as WHEN 'completed' THEN now() END,
    expired_at = CASE closing_as WHEN 'expired' THEN now() END,
    cancelled_at = CASE closing_as WHEN 'cancelled' THEN now() END
WHERE batch_id = $1
"""

ServableBy = Callable[[str, str], bool]
"""Whether a tenant (by name) may have requests for a model answered."""


class Keeper:
    """Each method raises UnavailableError when Postgres is away."""

    def __init__(
        self, database: Database, servable: ServableBy, *, max_bytes: int, max_lines: int, keep_s: float
    ) -> None:
        self._database = database
        self._servable = servable
        self._max_bytes = max_bytes
        self._max_lines = max_lines
        self._keep = timedelta(seconds=keep_s)

    async def step(self) -> bool:
        """Take one batch one step further; whether there was one."""
        async with self._database.transaction() as connection:
            batch = await connection.fetchrow(NEXT)
            if batch is None:
                return False
            match batch["status"]:
                case "validating":
                    await self._validate(connection, batch)
                case "in_progress":
                    await connection.execute(FINALIZE, batch["batch_id"])
                case _:
                    await self._close(connection, batch)
            return True

    # -- validating

    async def _validate(self, connection: Any, batch: Record) -> None:
        errors, total = await self._check_file(connection, batch)
        if errors:
            await connection.execute(FORGET_LINES, batch["batch_id"])
            await connection.execute(FAIL, batch["batch_id"], msgspec.json.encode(errors).decode())
            return
        output, error = new_file_id(), new_file_id()
        for file_id, kind in ((output, "output"), (error, "error")):
            name = f"{batch['batch_id']}_{kind}.jsonl"
            await connection.execute(ADD_RESULT_FILE, file_id, batch["tenant"], name, self._keep)
        await connection.execute(BEGIN, batch["batch_id"], total, output, error)

    async def _check_file(self, connection: Any, batch: Record) -> tuple[list[LineError], int]:
        """What is wrong with the input file, and how many requests it holds; these become lines to be run."""
        file = await connection.fetchrow(FILE, batch["input_file_id"])
        if file is None:
            return [LineError("file_not_found", "The input file is not there any more.")], 0
        if file["bytes"] > self._max_bytes:
            return [LineError("file_too_large", f"The input file exceeds {self._max_bytes} bytes.", None)], 0
        if file["lines"] > rows_kept(self._max_lines):
            return [too_many(self._max_lines)], 0
        checker = LineChecker(
            batch["endpoint"], lambda model: self._servable(batch["tenant"], model), self._max_lines
        )
        line = 0
        while not checker.hopeless and (rows := await read_page(connection, batch["input_file_id"], line)):
            checked = [(row["line"], checker.check(row["line"], row["data"])) for row in rows]
            await connection.copy_records_to_table(
                "lines",
                schema_name="batch",
                columns=("batch_id", "line", "custom_id"),
                records=[(batch["batch_id"], number, id_) for number, id_ in checked if id_ is not None],
            )
            line = rows[-1]["line"]
        checker.finish()
        return checker.errors, checker.lines

    # -- closing

    async def _close(self, connection: Any, batch: Record) -> None:
        """Give up lines that are left, or if there are none, show the files and end the batch."""
        batch_id, error_file_id = batch["batch_id"], batch["error_file_id"]
        problem = CANCELLED if batch["closing_as"] == "cancelled" else EXPIRED
        if left := await connection.fetch(GIVE_UP, batch_id, CLOSING_LINES):
            rows = [
                (row["line"], unanswered(batch_id, row["line"], row["custom_id"], problem)) for row in left
            ]
            await copy_lines(connection, error_file_id, rows)
            await connection.execute(COUNT_FAILED, batch_id, len(rows))
            return
        shown = [
            await self._seal(connection, file_id) for file_id in (batch["output_file_id"], error_file_id)
        ]
        await connection.execute(CLOSE, batch_id, *shown)

    async def _seal(self, connection: Any, file_id: str | None) -> str | None:
        """The file's id if it holds anything; else it is dropped."""
        if file_id is None:
            return None
        if await connection.fetchval(SEAL, file_id, self._keep):
            return file_id
        await connection.execute(DISCARD, file_id)
        return None


def rows_kept(max_lines: int) -> int:
    """Lines of a file that are kept one by one: more than a batch may have, since blank ones do not count."""
    return 2 * max_lines
