"""Files and batches as OpenAI's API shows them, and what may be asked of it."""

from typing import Annotated, Any

import msgspec

from ingress.batch.database import unix_s
from ingress.policy.batch.lines import LineError

Record = Any
"""A row of asyncpg."""

MetadataKey = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
MetadataValue = Annotated[str, msgspec.Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], msgspec.Meta(max_length=16)]


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str = "processed"
    status_details: str | None = None


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "file"
    deleted: bool = True


class CreateBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None


class Errors(msgspec.Struct, frozen=True):
    data: list[LineError]
    object: str = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    """Of a batch that is over, `completed` and `failed` are the lines of its two files and add up to `total`."""

    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "batch"
    endpoint: str
    errors: Errors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a list."""

    object: str = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page(items: list[Any], limit: int) -> Page:
    """The first `limit` of the items, of which one more was read than asked for."""
    shown = items[:limit]
    return Page(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(items) > limit,
    )


def file_object(record: Record) -> FileObject:
    return FileObject(
        id=record["file_id"],
        bytes=record["bytes"],
        created_at=int(record["created_at"].timestamp()),
        expires_at=int(record["expires_at"].timestamp()),
        filename=record["filename"],
        purpose=record["purpose"],
    )


_TIMES = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at"),
    *("expired_at", "cancelling_at", "cancelled_at"),
)
_OVER = frozenset({"completed", "expired", "cancelled", "failed"})


def batch_object(record: Record) -> BatchObject:
    # The files of results are there from the start, and are shown once they are complete.
    over = record["status"] in _OVER
    errors, metadata = record["errors"], record["metadata"]
    times: dict[str, Any] = {name: unix_s(record[name]) for name in _TIMES}
    return BatchObject(
        id=record["batch_id"],
        endpoint=record["endpoint"],
        errors=Errors(msgspec.json.decode(errors, type=list[LineError])) if errors else None,
        input_file_id=record["input_file_id"],
        completion_window=record["completion_window"],
        status=record["status"],
        output_file_id=record["output_file_id"] if over else None,
        error_file_id=record["error_file_id"] if over else None,
        created_at=int(record["created_at"].timestamp()),
        expires_at=int(record["due_at"].timestamp()),
        request_counts=RequestCounts(record["total"], record["completed"], record["failed"]),
        metadata=msgspec.json.decode(metadata, type=dict[str, str]) if metadata else None,
        **times,
    )
