"""`/v1/ledger`: a tenant reads what the ledger has of its own requests.

Whose requests they are is said by the key alone, and the accountant is asked for no others: an answer is the same whether
another tenant has such a request or nobody does. The parameters are those of `tokenfleet ledger`.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast, get_args

import msgspec
from aiohttp import web

from ingress.auth import authenticate
from ingress.errors import ApiError
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.clock import Clock
from tokenfleet.contracts.ledger import (
    GroupBy,
    LedgerRows,
    Report,
    ReportRequest,
    RowKey,
    RowsRequest,
    SortBy,
)
from tokenfleet.durations import duration_s, moment_ns
from tokenfleet.errors import ContractError, RemoteError, UnavailableError
from tokenfleet.live import LiveTenants

ANSWER_TIMEOUT_S = 30.0
RETRY_AFTER_S = 5.0
LONGEST_SEARCH_S = 20.0
"""After so long without a single row of the tenant, it is told to ask for less."""
DEFAULT_ROWS, MOST_ROWS, MOST_GROUPS = 100, 1_000, 1_000
QUESTIONS_OF_A_TENANT = 2
QUESTIONS = 8
"""At once, through this ingress: the accountant has other things to do."""

SPAN = ("from", "to", "last", "run", "pool", "tenant")
REFUSALS = {
    "BadQuestionError": "invalid_value",
    "TooManyRowsError": "too_many_rows",
    "RefusedError": "invalid_value",
}
"""What the accountant calls questions that it does not answer."""

R = TypeVar("R")
Handle = Callable[[web.Request, str], Awaitable[web.Response]]


class LedgerHttp:
    """Handlers over the accountant of this site."""

    def __init__(self, tenants: LiveTenants, bus: Bus, site: str, clock: Clock) -> None:
        self._tenants = tenants
        self._bus = bus
        self._site = site
        self._clock = clock
        self._asking: Counter[str] = Counter()

    def add_routes(self, app: web.Application) -> None:
        routes: tuple[tuple[str, Handle], ...] = (
            ("/v1/ledger/report", self._report),
            ("/v1/ledger/requests", self._requests),
            ("/v1/ledger/requests/{id:.+}", self._request),
        )
        for path, handle in routes:
            app.router.add_get(path, self._guarded(handle))

    def _guarded(self, handle: Handle) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def guarded(request: web.Request) -> web.Response:
            tenant = authenticate(self._tenants, request.headers.get("Authorization")).tenant
            async with self._turn(tenant):
                return await handle(request, tenant)

        return guarded

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        if self._asking[tenant] >= QUESTIONS_OF_A_TENANT or self._asking.total() >= QUESTIONS:
            message = "Too many questions to the ledger at once. Ask again when one is answered."
            raise ApiError(429, message, code="too_many_ledger_questions", retry_after_s=1.0)
        self._asking[tenant] += 1
        try:
            yield
        finally:
            self._asking[tenant] -= 1
            if not self._asking[tenant]:
                del self._asking[tenant]

    # -- what is asked

    async def _report(self, request: web.Request, tenant: str) -> web.Response:
        query = _query(request, (*SPAN, "by", "sort", "limit"))
        asked = ReportRequest(
            **self._span(query, tenant),
            group_by=cast(GroupBy, _choice(query, "by", get_args(GroupBy), "class")),
            sort=cast(SortBy | None, _choice(query, "sort", get_args(SortBy), None)),
            limit=_number(query, "limit", None, MOST_GROUPS),
            # What GPUs cost the operator is nothing to a tenant.
            priced=False,
        )
        return _json(await self._ask(subjects.ledger_report(self._site), asked, Report))

    async def _requests(self, request: web.Request, tenant: str) -> web.Response:
        query = _query(request, (*SPAN, "after", "limit"))
        asked = RowsRequest(
            **self._span(query, tenant),
            after_row=_row_key(query.get("after")),
            limit=_number(query, "limit", DEFAULT_ROWS, MOST_ROWS) or DEFAULT_ROWS,
        )
        page = await self._first_rows(asked)
        rows = _objects(page)
        last = rows[-1] if rows and page.next is not None else None
        return _json(
            {
                "object": "list",
                "data": rows,
                "has_more": last is not None,
                "next": last and f"{last['request_id']}:{last['revision']}",
            }
        )

    async def _request(self, request: web.Request, tenant: str) -> web.Response:
        _query(request, ())
        wanted = request.match_info["id"]
        asked = RowsRequest(tenant=tenant, id=wanted, limit=1)
        rows = _objects(await self._ask(subjects.ledger_rows(self._site), asked, LedgerRows))
        if not rows:
            raise ApiError(
                404, f"The ledger has no request {wanted!r} of yours.", param="id", code="request_not_found"
            )
        return _json(rows[0])

    async def _first_rows(self, asked: RowsRequest) -> LedgerRows:
        """The first page that has rows, or the last of all: those of other tenants make empty ones."""
        deadline_s = self._clock.wall_s() + LONGEST_SEARCH_S
        while True:
            page = await self._ask(subjects.ledger_rows(self._site), asked, LedgerRows)
            if page.rows or page.next is None:
                return page
            if self._clock.wall_s() >= deadline_s:
                message = "The span is too long to be searched for your requests. Narrow it with from and to."
                raise ApiError(504, message, param="from", code="ledger_timeout")
            asked = msgspec.structs.replace(asked, after=page.next, after_row=None)

    def _span(self, query: Mapping[str, str], tenant: str) -> dict[str, Any]:
        if query.get("tenant", tenant) != tenant:
            message = f"This key is of tenant {tenant}: only its requests can be asked for."
            raise ApiError(400, message, param="tenant", code="invalid_value")
        if "last" in query and ("from" in query or "to" in query):
            message = "`last` is a span of its own: give it, or `from` and `to`."
            raise ApiError(400, message, param="last", code="invalid_value")
        now_ns = self._clock.unix_ns()
        return {
            "from_ns": _read(query, "from", lambda text: moment_ns(text, now_ns))
            or _read(query, "last", lambda text: max(now_ns - round(duration_s(text) * 1e9), 0)),
            "to_ns": _read(query, "to", lambda text: moment_ns(text, now_ns)),
            "client_request_id_prefix": query.get("run"),
            "pool": query.get("pool"),
            "tenant": tenant,
        }

    async def _ask(self, subject: str, question: Any, answer_type: type[R]) -> R:
        try:
            return await self._bus.request(subject, question, answer_type, timeout_s=ANSWER_TIMEOUT_S)
        except RemoteError as error:
            if error.kind in REFUSALS:
                raise ApiError(400, str(error), code=REFUSALS[error.kind]) from error
            if error.kind != UnavailableError.__name__:
                raise ApiError(500, "The ledger failed; its log says why.") from error
            raise _away() from error
        except (UnavailableError, ContractError) as error:
            raise _away() from error


def _query(request: web.Request, known: Collection[str]) -> dict[str, str]:
    """The parameters, each given at most once."""
    found: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            message = f"There is no parameter {name!r}." + (f" Known: {', '.join(known)}." if known else "")
            raise ApiError(400, message, param=name, code="unknown_parameter")
        if name in found:
            raise ApiError(400, f"{name} is given more than once.", param=name, code="invalid_value")
        found[name] = value
    return found


def _read(query: Mapping[str, str], name: str, read: Callable[[str], int]) -> int | None:
    if name not in query:
        return None
    try:
        return read(query[name])
    except (ValueError, OverflowError) as error:
        raise ApiError(400, f"{name}: {error}.", param=name, code="invalid_value") from error


def _choice(query: Mapping[str, str], name: str, known: Collection[str], default: str | None) -> str | None:
    value = query.get(name, default)
    if value is not None and value not in known:
        raise ApiError(400, f"{name} is one of {', '.join(known)}.", param=name, code="invalid_value")
    return value


def _number(query: Mapping[str, str], name: str, default: int | None, most: int) -> int | None:
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise ApiError(400, f"{name} must be 1 to {most}.", param=name, code="invalid_value")
    return int(text)


def _row_key(text: str | None) -> RowKey | None:
    if text is None:
        return None
    request_id, _, revision = text.rpartition(":")
    if not request_id or not revision.isascii() or not revision.isdigit() or len(revision) > 9:
        message = "after must be what an answer had as `next`."
        raise ApiError(400, message, param="after", code="invalid_value")
    return RowKey(request_id=request_id, revision=int(revision))


def _objects(page: LedgerRows) -> list[dict[str, Any]]:
    return [{"object": "ledger.request", **dict(zip(page.columns, row, strict=True))} for row in page.rows]


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _away() -> ApiError:
    return ApiError(
        503,
        "The ledger is away, or takes too long.",
        code="ledger_unavailable",
        retry_after_s=RETRY_AFTER_S,
    )
