"""Takes in `POST /v1/files`: a multipart form whose file goes to Postgres as it comes."""

import asyncio
from dataclasses import dataclass

from aiohttp import BodyPartReader, web

from ingress.batch.files import Files
from ingress.batch.objects import Record
from ingress.batch.splitting import LineSplitter, LineTooLongError
from ingress.errors import ApiError

CHUNK_BYTES = 64 << 10
MAX_FIELD_BYTES = 1 << 10
MAX_FIELDS = 16
MAX_FILENAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class UploadLimits:
    file_bytes: int
    line_bytes: int
    rows: int
    """Lines kept one by one."""
    chunk_timeout_s: float
    """For the next chunk to come."""


class _Form:
    """What was read of a form."""

    def __init__(self) -> None:
        self.purpose: str | None = None
        self.file_id: str | None = None


async def receive(request: web.Request, tenant: str, files: Files, limits: UploadLimits) -> Record:
    """Store an uploaded file.

    Raises:
        ApiError: 400, 403, 408 or 413; nothing stays of the file.
        UnavailableError: Postgres is away.
    """
    if request.content_length is not None and request.content_length > limits.file_bytes + MAX_FIELDS * 1024:
        raise _too_large(limits)
    form = _Form()
    try:
        await _read_form(request, tenant, files, limits, form)
        if form.file_id is None:
            raise ApiError(400, "The form has no file.", param="file", code="missing_required_parameter")
        if form.purpose != "batch":
            raise ApiError(400, "purpose must be `batch`.", param="purpose", code="invalid_value")
        return await files.finish(form.file_id)
    except BaseException:
        if form.file_id is not None:
            await asyncio.shield(files.discard(form.file_id))
        raise


async def _read_form(
    request: web.Request, tenant: str, files: Files, limits: UploadLimits, form: _Form
) -> None:
    try:
        reader = await request.multipart()
        for _ in range(MAX_FIELDS):
            async with asyncio.timeout(limits.chunk_timeout_s):
                part = await reader.next()
            if part is None:
                return
            if not isinstance(part, BodyPartReader):
                raise ApiError(400, "A form inside the form is not understood.", code="invalid_form")
            if part.name == "file" and form.file_id is None:
                name = (part.filename or "batch.jsonl").replace("\0", "")[:MAX_FILENAME_CHARS]
                form.file_id = await files.begin(tenant, name)
                await _store(part, form.file_id, files, limits)
            elif part.name == "purpose":
                form.purpose = (await _field(part, limits)).decode(errors="replace")
            else:
                await _field(part, limits)
    except TimeoutError as error:
        raise ApiError(408, "The file did not arrive in time.", code="request_timeout") from error
    except (ValueError, AssertionError, KeyError) as error:
        raise ApiError(400, f"The body is not a multipart form: {error}.", code="invalid_form") from error
    raise ApiError(400, f"The form has more than {MAX_FIELDS} fields.", code="invalid_form")


async def _store(part: BodyPartReader, file_id: str, files: Files, limits: UploadLimits) -> None:
    splitter = LineSplitter(limits.line_bytes, limits.rows)
    try:
        while chunk := await _chunk(part, limits):
            splitter.feed(chunk)
            if splitter.bytes > limits.file_bytes:
                raise _too_large(limits)
            if splitter.full:
                await files.append(file_id, splitter.piece(), splitter.bytes, splitter.lines)
        splitter.finish()
    except LineTooLongError as error:
        message = f"Line {error.line} exceeds {limits.line_bytes} bytes."
        raise ApiError(413, message, param="file", code="line_too_large") from error
    await files.append(file_id, splitter.piece(), splitter.bytes, splitter.lines)


async def _field(part: BodyPartReader, limits: UploadLimits) -> bytes:
    value = b""
    while chunk := await _chunk(part, limits):
        value += chunk
        if len(value) > MAX_FIELD_BYTES:
            raise ApiError(400, f"{part.name} is too long.", param=part.name, code="invalid_form")
    return value


async def _chunk(part: BodyPartReader, limits: UploadLimits) -> bytes:
    async with asyncio.timeout(limits.chunk_timeout_s):
        return await part.read_chunk(CHUNK_BYTES)


def _too_large(limits: UploadLimits) -> ApiError:
    return ApiError(413, f"The file exceeds {limits.file_bytes} bytes.", param="file", code="file_too_large")
