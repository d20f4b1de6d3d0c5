"""Batches as their tenants see and steer them."""

import uuid
from datetime import timedelta

import msgspec

from ingress.batch.database import Database
from ingress.batch.files import no_such_file
from ingress.batch.objects import CreateBatch, Record
from ingress.errors import ApiError
from ingress.policy.batch.deadline import window_s
from ingress.policy.batch.lines import ENDPOINTS

OPEN_RETRY_AFTER_S = 60.0

# Two requests of one tenant must not both take its last place.
ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended('tokenfleet.batch.' || $1, 0))"
COUNT_OPEN = """
SELECT count(*) FROM batch.batches
WHERE tenant = $1 AND status IN ('validating', 'in_progress', 'finalizing', 'cancelling')
"""
# Locked, so that it is not deleted before the batch that reads it is there.
INPUT_FILE = """
SELECT purpose FROM batch.files WHERE file_id = $1 AND tenant = $2 AND state = 'ready' FOR KEY SHARE
"""
ADD = """
INSERT INTO batch.batches
    (batch_id, tenant, input_file_id, endpoint, completion_window, metadata, status, due_at)
VALUES ($1, $2, $3, $4, $5, $6, 'validating', now() + $7)
RETURNING *
"""
GET = "SELECT * FROM batch.batches WHERE batch_id = $1 AND tenant = $2"
LIST = """
SELECT * FROM batch.batches
WHERE tenant = $1
  AND ($2::text IS NULL OR (created_at, batch_id)
       < (SELECT created_at, batch_id FROM batch.batches WHERE batch_id = $2 AND tenant = $1))
ORDER BY created_at DESC, batch_id DESC LIMIT $3
"""
CANCEL = """
UPDATE batch.batches SET status = 'cancelling', closing_as = 'cancelled', cancelling_at = now()
WHERE batch_id = $1 AND status IN ('validating', 'in_progress') RETURNING *
"""


class Batches:
    """Each method raises UnavailableError when Postgres is away."""

    def __init__(self, database: Database, max_open: int, time_scale: float) -> None:
        self._database = database
        self._max_open = max_open
        self._time_scale = time_scale

    async def create(self, tenant: str, asked: CreateBatch) -> Record:
        """A batch to be validated. Its window is in engine seconds, like every deadline of a request.

        Raises:
            ApiError: 400, 404 or 429.
        """
        if asked.endpoint not in ENDPOINTS:
            message = f"endpoint must be one of {', '.join(ENDPOINTS)}."
            raise ApiError(400, message, param="endpoint", code="invalid_value")
        try:
            window = timedelta(seconds=window_s(asked.completion_window) / self._time_scale)
        except ValueError as error:
            message = f"completion_window must be {error}."
            raise ApiError(400, message, param="completion_window", code="invalid_value") from error
        metadata = None if asked.metadata is None else msgspec.json.encode(asked.metadata).decode()
        async with self._database.transaction() as connection:
            await connection.execute(ONE_AT_A_TIME, tenant)
            purpose = await connection.fetchval(INPUT_FILE, asked.input_file_id, tenant)
            if purpose is None:
                raise no_such_file(asked.input_file_id, "input_file_id")
            if purpose != "batch":
                message = "The input file must have been uploaded with the purpose `batch`."
                raise ApiError(400, message, param="input_file_id", code="invalid_file_purpose")
            if await connection.fetchval(COUNT_OPEN, tenant) >= self._max_open:
                raise ApiError(
                    429,
                    f"You already have {self._max_open} unfinished batches, the limit.",
                    code="too_many_batches",
                    retry_after_s=OPEN_RETRY_AFTER_S,
                )
            return await connection.fetchrow(
                ADD,
                f"batch_{uuid.uuid4().hex}",
                tenant,
                asked.input_file_id,
                asked.endpoint,
                asked.completion_window,
                metadata,
                window,
            )

    async def get(self, tenant: str, batch_id: str) -> Record:
        """
        Raises:
            ApiError: 404.
        """
        async with self._database.transaction() as connection:
            record = await connection.fetchrow(GET, batch_id, tenant)
        if record is None:
            raise _no_such_batch(batch_id)
        return record

    async def list(self, tenant: str, after: str | None, limit: int) -> list[Record]:
        """A tenant's batches, the newest first, one more than `limit` if there are more."""
        async with self._database.transaction() as connection:
            return await connection.fetch(LIST, tenant, after, limit + 1)

    async def cancel(self, tenant: str, batch_id: str) -> Record:
        """Begin to cancel a batch. Saying it again changes nothing.

        Raises:
            ApiError: 404; 409, it is over or about to be.
        """
        async with self._database.transaction() as connection:
            record = await connection.fetchrow(f"{GET} FOR UPDATE", batch_id, tenant)
            if record is None:
                raise _no_such_batch(batch_id)
            changed = await connection.fetchrow(CANCEL, batch_id)
        if changed is None and record["status"] != "cancelling":
            message = f"A batch that is {record['status']} cannot be cancelled."
            raise ApiError(409, message, code="batch_not_cancellable")
        return changed or record


def _no_such_batch(batch_id: str) -> ApiError:
    return ApiError(404, f"No batch found with id '{batch_id}'.", code="batch_not_found", param="id")
