"""Files in Postgres, one row per line."""

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from ingress.batch.database import Database
from ingress.batch.objects import Record
from ingress.batch.splitting import PIECE_BYTES, PIECE_ROWS, Row
from ingress.errors import ApiError

ABANDONED_UPLOAD = timedelta(hours=2)

ADD = """
INSERT INTO batch.files (file_id, tenant, purpose, filename, state, expires_at)
VALUES ($1, $2, 'batch', $3, 'uploading', now() + $4)
"""
STORED_BYTES = "SELECT coalesce(sum(bytes), 0)::bigint FROM batch.files WHERE tenant = $1"
GREW = "UPDATE batch.files SET bytes = $2, lines = $3 WHERE file_id = $1"
FINISH = "UPDATE batch.files SET state = 'ready' WHERE file_id = $1 RETURNING *"
DISCARD = "DELETE FROM batch.files WHERE file_id = $1"
GET = "SELECT * FROM batch.files WHERE file_id = $1 AND tenant = $2 AND state = 'ready'"
DELETE = "DELETE FROM batch.files WHERE file_id = $1 AND tenant = $2 AND state = 'ready' RETURNING true"
IN_USE = """
SELECT batch_id FROM batch.batches
WHERE input_file_id = $1 AND status IN ('validating', 'in_progress', 'finalizing', 'cancelling') LIMIT 1
"""
LIST = """
SELECT * FROM batch.files
WHERE tenant = $1 AND state = 'ready' AND ($2::text IS NULL OR purpose = $2)
  AND ($3::text IS NULL
       OR (created_at, file_id) {beyond} (SELECT created_at, file_id FROM batch.files WHERE file_id = $3 AND tenant = $1))
ORDER BY created_at {order}, file_id {order} LIMIT $4
"""
# Bounded by bytes as well as by rows. Lengths are known without reading long values.
PAGE = """
SELECT line, data FROM (
    SELECT line, data, sum(octet_length(data)) OVER (ORDER BY line) - octet_length(data) AS bytes_before
    FROM (SELECT line, data FROM batch.file_lines WHERE file_id = $1 AND line > $2 ORDER BY line LIMIT $3) AS rows
) AS sized WHERE bytes_before < $4 ORDER BY line
"""
SWEEP = """
DELETE FROM batch.files f
WHERE (f.expires_at < now() OR (f.state = 'uploading' AND f.created_at < now() - $1::interval))
  AND f.state <> 'building'
  AND NOT EXISTS (
      SELECT 1 FROM batch.batches b WHERE b.input_file_id = f.file_id
      AND b.status IN ('validating', 'in_progress', 'finalizing', 'cancelling'))
"""


def no_such_file(file_id: str, param: str = "id") -> ApiError:
    """Answers for files of others just as for those that never were."""
    return ApiError(404, f"No such File object: {file_id}", code="file_not_found", param=param)


class Files:
    """Each method raises UnavailableError when Postgres is away."""

    def __init__(self, database: Database, keep_s: float, max_stored_bytes: int) -> None:
        self._database = database
        self._keep = timedelta(seconds=keep_s)
        self._max_stored_bytes = max_stored_bytes

    # -- uploading

    async def begin(self, tenant: str, filename: str) -> str:
        """A new file that nobody sees until it is finished; its id.

        Raises:
            ApiError: 403, the tenant's files already take up all it may store.
        """
        file_id = new_file_id()
        async with self._database.transaction() as connection:
            stored = await connection.fetchval(STORED_BYTES, tenant)
            if stored >= self._max_stored_bytes:
                raise ApiError(
                    403,
                    f"Your files take up {stored} bytes, and {self._max_stored_bytes} are allowed: delete some.",
                    code="storage_exhausted",
                )
            await connection.execute(ADD, file_id, tenant, filename, self._keep)
        return file_id

    async def append(self, file_id: str, rows: list[Row], total_bytes: int, total_lines: int) -> None:
        """Store the next lines; the totals are those of the file with them."""
        async with self._database.transaction() as connection:
            await connection.execute(GREW, file_id, total_bytes, total_lines)
            await copy_lines(connection, file_id, rows)

    async def finish(self, file_id: str) -> Record:
        """The file is complete and can be used."""
        async with self._database.transaction() as connection:
            return await connection.fetchrow(FINISH, file_id)

    async def discard(self, file_id: str) -> None:
        """Forget an upload that came to nothing."""
        async with self._database.transaction() as connection:
            await connection.execute(DISCARD, file_id)

    # -- afterwards

    async def get(self, tenant: str, file_id: str) -> Record:
        """
        Raises:
            ApiError: 404.
        """
        async with self._database.transaction() as connection:
            record = await connection.fetchrow(GET, file_id, tenant)
        if record is None:
            raise no_such_file(file_id)
        return record

    async def list(
        self, tenant: str, purpose: str | None, after: str | None, limit: int, *, ascending: bool
    ) -> list[Record]:
        """A tenant's files by creation, one more than `limit` if there are more."""
        query = LIST.format(order="ASC" if ascending else "DESC", beyond=">" if ascending else "<")
        async with self._database.transaction() as connection:
            return await connection.fetch(query, tenant, purpose, after, limit + 1)

    async def delete(self, tenant: str, file_id: str) -> None:
        """
        Raises:
            ApiError: 404; 409, an unfinished batch reads it.
        """
        async with self._database.transaction() as connection:
            if await connection.fetchval(DELETE, file_id, tenant) is None:
                raise no_such_file(file_id)
            # Asked afterwards: a batch created at the same time is either seen here or does not find the file.
            if (batch_id := await connection.fetchval(IN_USE, file_id)) is not None:
                raise ApiError(409, f"The file is in use by {batch_id}. Cancel it first.", code="file_in_use")

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        """The whole file, in pieces of about a megabyte."""
        line = -1
        while True:
            async with self._database.transaction() as connection:
                rows = await read_page(connection, file_id, line)
            if not rows:
                return
            yield b"".join(row["data"] for row in rows)
            line = rows[-1]["line"]

    async def sweep(self) -> None:
        """Delete files past their time, and what is left of uploads that broke off."""
        async with self._database.transaction() as connection:
            await connection.execute(SWEEP, ABANDONED_UPLOAD)


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


async def copy_lines(connection: Any, file_id: str, rows: list[Row]) -> None:
    await connection.copy_records_to_table(
        "file_lines",
        schema_name="batch",
        columns=("file_id", "line", "data"),
        records=[(file_id, line, data) for line, data in rows],
    )


async def read_page(connection: Any, file_id: str, after_line: int) -> list[Record]:
    """The next lines of a file, by number."""
    return await connection.fetch(PAGE, file_id, after_line, PIECE_ROWS, PIECE_BYTES)
