"""`/v1/files` and `/v1/batches`, as OpenAI has them."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from ingress.auth import authenticate
from ingress.batch import objects, uploads
from ingress.batch.batches import Batches
from ingress.batch.files import Files
from ingress.batch.uploads import UploadLimits
from ingress.errors import ApiError
from tokenfleet.errors import UnavailableError
from tokenfleet.live import LiveTenants

MAX_BODY_BYTES = 64 << 10
RETRY_AFTER_S = 5.0

_CREATE = msgspec.json.Decoder(objects.CreateBatch)

Handle = Callable[[web.Request, str], Awaitable[web.StreamResponse]]
"""Answers a request of a tenant."""
OnBatch = Callable[[str], None]
"""Is told the id of a batch that changed."""


class BatchHttp:
    """Handlers over the stores; without any, everything is answered with 503."""

    def __init__(
        self,
        tenants: LiveTenants,
        stores: tuple[Files, Batches] | None,
        limits: UploadLimits,
        *,
        on_created: OnBatch,
        on_cancelled: OnBatch,
    ) -> None:
        self._tenants = tenants
        self._stores = stores
        self._limits = limits
        self._on_created = on_created
        self._on_cancelled = on_cancelled

    def add_routes(self, app: web.Application) -> None:
        routes: tuple[tuple[str, str, Handle], ...] = (
            ("POST", "/v1/files", self._upload),
            ("GET", "/v1/files", self._list_files),
            ("GET", "/v1/files/{id}", self._get_file),
            ("DELETE", "/v1/files/{id}", self._delete_file),
            ("GET", "/v1/files/{id}/content", self._content),
            ("POST", "/v1/batches", self._create),
            ("GET", "/v1/batches", self._list_batches),
            ("GET", "/v1/batches/{id}", self._get_batch),
            ("POST", "/v1/batches/{id}/cancel", self._cancel),
        )
        for method, path, handle in routes:
            app.router.add_route(method, path, self._guarded(handle))

    def _guarded(self, handle: Handle) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guarded(request: web.Request) -> web.StreamResponse:
            tenant = authenticate(self._tenants, request.headers.get("Authorization"))
            try:
                return await handle(request, tenant.tenant)
            except UnavailableError as error:
                raise _unavailable("The database of the batch API is away, or not up to date yet.") from error

        return guarded

    @property
    def _files(self) -> Files:
        return self._both[0]

    @property
    def _batches(self) -> Batches:
        return self._both[1]

    @property
    def _both(self) -> tuple[Files, Batches]:
        if self._stores is None:
            raise _unavailable("This deployment has no database for batches (TOKENFLEET_POSTGRES_DSN).")
        return self._stores

    # -- files

    async def _upload(self, request: web.Request, tenant: str) -> web.Response:
        record = await uploads.receive(request, tenant, self._files, self._limits)
        return _json(objects.file_object(record))

    async def _list_files(self, request: web.Request, tenant: str) -> web.Response:
        limit = _limit(request, default=10_000, most=10_000)
        order = request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise ApiError(400, "order must be `asc` or `desc`.", param="order", code="invalid_value")
        purpose, after = request.query.get("purpose"), request.query.get("after")
        records = await self._files.list(tenant, purpose, after, limit, ascending=order == "asc")
        return _json(objects.page([objects.file_object(record) for record in records], limit))

    async def _get_file(self, request: web.Request, tenant: str) -> web.Response:
        return _json(objects.file_object(await self._files.get(tenant, request.match_info["id"])))

    async def _delete_file(self, request: web.Request, tenant: str) -> web.Response:
        file_id = request.match_info["id"]
        await self._files.delete(tenant, file_id)
        return _json(objects.FileDeleted(id=file_id))

    async def _content(self, request: web.Request, tenant: str) -> web.StreamResponse:
        record = await self._files.get(tenant, request.match_info["id"])
        response = web.StreamResponse(headers={"content-type": "application/jsonl"})
        # A download that breaks off is told by its length.
        response.content_length = record["bytes"]
        await response.prepare(request)
        try:
            async for piece in self._files.content(record["file_id"]):
                await response.write(piece)
            await response.write_eof()
        except UnavailableError:
            response.force_close()
        return response

    # -- batches

    async def _create(self, request: web.Request, tenant: str) -> web.Response:
        batches = self._batches
        try:
            asked = _CREATE.decode(await _read_body(request))
        except msgspec.ValidationError as error:
            raise ApiError(400, f"{error}.", code="invalid_value") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from error
        record = await batches.create(tenant, asked)
        self._on_created(record["batch_id"])
        return _json(objects.batch_object(record))

    async def _list_batches(self, request: web.Request, tenant: str) -> web.Response:
        limit = _limit(request, default=20, most=100)
        records = await self._batches.list(tenant, request.query.get("after"), limit)
        return _json(objects.page([objects.batch_object(record) for record in records], limit))

    async def _get_batch(self, request: web.Request, tenant: str) -> web.Response:
        return _json(objects.batch_object(await self._batches.get(tenant, request.match_info["id"])))

    async def _cancel(self, request: web.Request, tenant: str) -> web.Response:
        record = await self._batches.cancel(tenant, request.match_info["id"])
        self._on_cancelled(record["batch_id"])
        return _json(objects.batch_object(record))


async def _read_body(request: web.Request) -> bytes:
    body = b""
    async for part in request.content.iter_any():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"The body exceeds {MAX_BODY_BYTES} bytes.", code="request_too_large")
    return body


def _limit(request: web.Request, *, default: int, most: int) -> int:
    text = request.query.get("limit", str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise ApiError(400, f"limit must be 1 to {most}.", param="limit", code="invalid_value")
    return int(text)


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _unavailable(message: str) -> ApiError:
    return ApiError(503, message, code="batch_unavailable", retry_after_s=RETRY_AFTER_S)
