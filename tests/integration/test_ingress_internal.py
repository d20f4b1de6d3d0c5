"""A request that the ingress asks for itself has the life of any other, without a client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from conftest import NatsServer
from integration.ingress_world import TENANT, World, admit, hang, queue, route, world

from ingress import validation
from ingress.errors import ApiError
from ingress.gateway import Gateway
from ingress.http_api import HttpApi
from ingress.internal import InternalAnswer, serve_internal
from ingress.policy.token_rate import Reservation
from ingress.settings import IngressSettings
from ingress.validation import ApiRequest
from tokenfleet.bus import Bus
from tokenfleet.service import Service

pytestmark = pytest.mark.integration


@asynccontextmanager
async def gateway_at(settings: IngressSettings) -> AsyncIterator[tuple[Gateway, str]]:
    """An ingress in this process, and where it listens."""
    service = Service("ingress", settings, await Bus.connect(settings, "ingress"))
    gateway = Gateway(service)
    await gateway.start()
    runner = web.AppRunner(HttpApi(gateway).app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield gateway, "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()
        assert await gateway.outbox.flush(3.0)
        await gateway.engines.close()
        gateway.prompts.close()
        gateway.journal.close()
        await service.stop()


@pytest.fixture
async def both(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[tuple[Gateway, World]]:
    settings = nats_server.settings("ingress", IngressSettings, state_dir=tmp_path)
    async with (
        gateway_at(settings) as (gateway, url),
        world(nats_server.settings("operator"), url) as fleet,
    ):
        yield gateway, fleet


def asked(fleet: World, **more: Any) -> ApiRequest:
    body = {"model": fleet.model, "prompt": "four " * 80, "max_tokens": 9, **more}
    return validation.parse("text_completion", json.dumps(body).encode())


def code(answer: InternalAnswer) -> str:
    return json.loads(answer.body)["error"]["code"]


async def test_it_is_answered_like_any_other_and_deciders_know_what_it_is(
    both: tuple[Gateway, World],
) -> None:
    gateway, fleet = both
    await fleet.add_engine("a")
    due_ns = gateway.clock.unix_ns() + 3_600 * 10**9
    answer = await serve_internal(
        gateway, TENANT, asked(fleet), due_ns=due_ns, deadline_ns=due_ns, client_request_id="batch_1/7"
    )
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["text"] == "one two three"
    request = (await fleet.submitted.get()).request
    assert (request.service_tier, request.task) == ("flex", "batch")
    assert (request.due_ns, request.deadline_ns) == (due_ns, due_ns)
    ended = await fleet.outcome()
    assert (ended.request_id, ended.outcome) == (answer.request_id, "completed")
    assert ended.client_request_id == "batch_1/7"


async def test_cancelling_the_call_cancels_the_request(both: tuple[Gateway, World]) -> None:
    gateway, fleet = both
    engine = await fleet.add_engine("a", hang)
    asking = asyncio.create_task(serve_internal(gateway, TENANT, asked(fleet)))
    await asyncio.wait_for(engine.begun.wait(), 3)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.wait_for(engine.cancelled.wait(), 2)
    assert (await fleet.outcome()).outcome == "cancelled"


async def test_it_waits_in_a_queue_for_longer_than_any_client_would(both: tuple[Gateway, World]) -> None:
    gateway, fleet = both
    engine = await fleet.add_engine("a")
    pool = fleet.records[engine.name].pool
    fleet.decide = lambda submitted: [queue(submitted, pool, valid_s=30.0)]
    asking = asyncio.create_task(serve_internal(gateway, TENANT, asked(fleet)))
    submitted = await asyncio.wait_for(fleet.submitted.get(), 3)
    await asyncio.sleep(1.5 * gateway.settings.ingress_decision_timeout_s)
    assert fleet.submitted.empty()
    await fleet.answer(submitted, admit(submitted, pool, queue_wait_s=1.5))
    await fleet.answer(submitted, route(submitted, pool, engine.name))
    assert (await asking).status == 200


async def test_at_its_deadline_it_ends(both: tuple[Gateway, World]) -> None:
    gateway, fleet = both
    await fleet.add_engine("a", hang)
    deadline_ns = gateway.clock.unix_ns() + 500_000_000
    answer = await serve_internal(gateway, TENANT, asked(fleet), deadline_ns=deadline_ns)
    assert (answer.status, code(answer)) == (504, "deadline")


async def test_it_is_none_of_its_tenants_requests_at_once(both: tuple[Gateway, World]) -> None:
    gateway, fleet = both
    await fleet.add_engine("a")
    tenant = msgspec.structs.replace(TENANT, max_concurrency=1)
    gateway.concurrency.enter(tenant.tenant)
    assert (await serve_internal(gateway, tenant, asked(fleet))).status == 200
    gateway.concurrency.leave(tenant.tenant)


async def test_it_leaves_half_of_the_tokens_to_clients_and_what_is_refused_leaves_no_row(
    both: tuple[Gateway, World],
) -> None:
    gateway, fleet = both
    await fleet.add_engine("a", hang)
    tenant = msgspec.structs.replace(TENANT, tokens_per_minute=400)
    first = asyncio.create_task(serve_internal(gateway, tenant, asked(fleet)))
    await asyncio.wait_for(fleet.submitted.get(), 3)
    answer = await serve_internal(gateway, tenant, asked(fleet))
    assert (answer.status, code(answer), answer.request_id) == (429, "tenant_token_rate", "")
    assert answer.retry_after_s is not None
    clients = gateway.token_rates.reserve(tenant.tenant, 400, 100, 9, gateway.clock.now_s())
    assert isinstance(clients, Reservation)
    first.cancel()
    assert (await fleet.outcome()).outcome == "cancelled"
    assert fleet.ended.empty()


async def test_without_a_ready_instance_it_is_to_be_tried_again(both: tuple[Gateway, World]) -> None:
    gateway, fleet = both
    for model in (fleet.model, "never-heard-of"):
        answer = await serve_internal(gateway, TENANT, asked(fleet, model=model))
        assert (answer.status, code(answer), answer.request_id) == (503, "no_ready_instance", "")


async def test_there_is_nobody_to_stream_to(both: tuple[Gateway, World]) -> None:
    gateway, fleet = both
    await fleet.add_engine("a")
    with pytest.raises(ApiError, match="streamed"):
        await serve_internal(gateway, TENANT, asked(fleet, stream=True))


async def test_an_engine_that_streams_unasked_is_tried_elsewhere(both: tuple[Gateway, World]) -> None:
    async def stream_anyway(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: [DONE]\n\n")
        return response

    gateway, fleet = both
    await fleet.add_engine("a", stream_anyway)
    await fleet.add_engine("b")
    assert (await serve_internal(gateway, TENANT, asked(fleet))).status == 200
    assert (await fleet.outcome()).attempt == 2
