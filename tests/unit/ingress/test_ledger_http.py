"""What a tenant gets when the ledger is slow, mostly others', or broken."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from ingress.errors import ApiError
from ingress.ledger_http import LONGEST_SEARCH_S, QUESTIONS, QUESTIONS_OF_A_TENANT, LedgerHttp
from tokenfleet.bus import Bus
from tokenfleet.clock import SystemClock
from tokenfleet.contracts.ledger import LedgerRows, RowCursor, RowKey, RowsRequest
from tokenfleet.contracts.policy import Tenant
from tokenfleet.errors import RemoteError, TokenFleetError
from tokenfleet.live import LiveTenants

COLUMNS = ("request_id", "revision")
NAMES = [f"tenant-{number}" for number in range(QUESTIONS + 1)]

Answer = Callable[[RowsRequest], LedgerRows]


class Ledger:
    """An accountant at the other end of the bus."""

    def __init__(self) -> None:
        self.asked: list[RowsRequest] = []
        self.answer: Answer = lambda request: LedgerRows(columns=COLUMNS, rows=())
        self.answering = asyncio.Event()
        self.answering.set()

    async def request(
        self, subject: str, question: RowsRequest, answer_type: type, timeout_s: float
    ) -> LedgerRows:
        self.asked.append(question)
        await self.answering.wait()
        return self.answer(question)


class Clock(SystemClock):
    """Wall time goes on by a search's length for each look at it, if a test says so."""

    step_s = 0.0
    at_s = 0.0

    def wall_s(self) -> float:
        self.at_s += self.step_s
        return self.at_s


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(ledger: Ledger, clock: Clock) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    tenants = LiveTenants()
    for name in NAMES:
        tenants.by_key_hash[hashlib.sha256(name.encode()).hexdigest()] = Tenant(tenant=name)

    @web.middleware
    async def statuses(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            return web.Response(body=error.body(), status=error.status, headers=error.headers)

    app = web.Application(middlewares=[statuses])
    LedgerHttp(tenants, cast(Bus, ledger), "local", clock).add_routes(app)
    async with TestClient(TestServer(app)) as client:
        yield client


async def get(client: TestClient[web.Request, web.Application], name: str, path: str = "requests") -> int:
    async with client.get(f"/v1/ledger/{path}", headers={"Authorization": f"Bearer {name}"}) as response:
        return response.status


async def until_asked(ledger: Ledger, questions: int) -> None:
    while len(ledger.asked) < questions:
        await asyncio.sleep(0)


async def test_one_tenant_cannot_keep_the_ledger_from_others_nor_all_of_them_from_its_work(
    client: TestClient[web.Request, web.Application], ledger: Ledger
) -> None:
    ledger.answering.clear()
    first = [asyncio.create_task(get(client, NAMES[0])) for _ in range(QUESTIONS_OF_A_TENANT)]
    await until_asked(ledger, len(first))
    assert await get(client, NAMES[0]) == 429
    others = [asyncio.create_task(get(client, name)) for name in NAMES[1 : QUESTIONS - len(first) + 1]]
    await until_asked(ledger, QUESTIONS)
    assert await get(client, NAMES[-1]) == 429
    ledger.answering.set()
    assert set(await asyncio.gather(*first, *others)) == {200}
    assert await get(client, NAMES[0]) == 200
    assert {question.tenant for question in ledger.asked} == set(NAMES[: QUESTIONS - len(first) + 1])


async def test_pages_without_a_row_of_the_tenant_are_passed_over(
    client: TestClient[web.Request, web.Application], ledger: Ledger
) -> None:
    def third_time(request: RowsRequest) -> LedgerRows:
        place = request.after.sequence if request.after else 0
        rows = ((f"r{place}", 1),) if place == 2 else ()
        return LedgerRows(columns=COLUMNS, rows=rows, next=RowCursor(day=1, sequence=place + 1))

    ledger.answer = third_time
    headers = {"Authorization": f"Bearer {NAMES[0]}"}
    async with client.get("/v1/ledger/requests?after=r:x:1", headers=headers) as response:
        page = await response.json()
    assert page["next"] == "r2:1"
    assert [row["request_id"] for row in page["data"]] == ["r2"]
    assert [question.after_row for question in ledger.asked] == [
        RowKey(request_id="r:x", revision=1), None, None,
    ]  # fmt: skip


async def test_a_search_without_end_is_given_up(
    client: TestClient[web.Request, web.Application], ledger: Ledger, clock: Clock
) -> None:
    clock.step_s = LONGEST_SEARCH_S / 4
    ledger.answer = lambda request: LedgerRows(
        columns=COLUMNS, rows=(), next=RowCursor(day=1, sequence=len(ledger.asked))
    )
    assert await get(client, NAMES[0]) == 504
    assert len(ledger.asked) == 4


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RemoteError("BadQuestionError", "no"), 400),
        (RemoteError("TooManyRowsError", "too many"), 400),
        (RemoteError("UnavailableError", "away"), 503),
        (RemoteError("InternalError", "KeyError in ledger"), 500),
    ],
)
async def test_what_the_accountant_cannot_answer_becomes_a_status(
    client: TestClient[web.Request, web.Application], ledger: Ledger, error: TokenFleetError, status: int
) -> None:
    def fail(request: RowsRequest) -> LedgerRows:
        raise error

    ledger.answer = fail
    assert await get(client, NAMES[0], "requests/any/with/slashes") == status
    assert ledger.asked[0].id == "any/with/slashes"
    assert ledger.asked[0].tenant == NAMES[0]
