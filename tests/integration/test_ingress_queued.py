"""A request that SLOMax keeps: what its ingress and its client see while it waits and however that ends."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import NatsServer
from integration.ingress_world import (
    DECISION_TIMEOUT_S,
    IngressProcess,
    World,
    admit,
    hang,
    ingress_process,
    queue,
    refuse,
    route,
    world,
)

from tokenfleet.contracts.policy import Policy
from tokenfleet.contracts.requests import Submitted

pytestmark = pytest.mark.integration

LONGER_THAN_A_DECISION_S = 2.5 * DECISION_TIMEOUT_S


@pytest.fixture(scope="module")
def ingress(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngressProcess]:
    process = ingress_process(nats_server.environment("ingress"), tmp_path_factory.mktemp("ingress"))
    process.start()
    yield process
    assert process.stop() == 0
    assert b"Traceback" not in process.log.read_bytes(), process.log.read_text()


@pytest.fixture
async def fleet(nats_server: NatsServer, ingress: IngressProcess) -> AsyncIterator[World]:
    async with world(nats_server.settings("operator"), ingress.url) as fleet:
        yield fleet


def pool_of(fleet: World) -> str:
    return next(iter(fleet.records.values())).pool


async def post(fleet: World, **more: Any) -> tuple[int, dict[str, Any], Any]:
    body = {"model": fleet.model, "prompt": "hello", "max_tokens": 9, **more}
    async with fleet.session.post("/v1/completions", json=body) as response:
        return response.status, json.loads(await response.read()), response.headers


async def queued(fleet: World, **queue_fields: Any) -> tuple["asyncio.Task[Any]", Submitted]:
    """A client that waits for the answer of a request that SLOMax has just said it keeps."""
    fleet.decide = lambda submitted: [queue(submitted, pool_of(fleet), **queue_fields)]
    asking = asyncio.create_task(post(fleet))
    submitted = await asyncio.wait_for(fleet.submitted.get(), 3)
    await asyncio.sleep(0.1)
    return asking, submitted


async def test_a_queued_request_gets_its_answer_when_its_turn_has_come(fleet: World) -> None:
    engine = await fleet.add_engine("a")
    asking, submitted = await queued(fleet)
    await asyncio.sleep(LONGER_THAN_A_DECISION_S)
    assert fleet.submitted.empty(), "nobody asks again while it is known to wait"
    assert not asking.done()
    await fleet.answer(submitted, admit(submitted, pool_of(fleet), queue_wait_s=1.25))
    await fleet.answer(submitted, route(submitted, pool_of(fleet), engine.name))
    status, _, headers = await asking
    assert status == 200
    assert headers["x-tokenfleet-queue-wait-s"] == "1.250"
    ended = await fleet.outcome()
    assert (ended.outcome, ended.queue_wait_s, ended.degraded) == ("completed", 1.25, False)


async def test_a_request_that_waited_for_nothing_says_so(fleet: World) -> None:
    await fleet.add_engine("a")
    status, _, headers = await post(fleet)
    assert (status, headers["x-tokenfleet-queue-wait-s"]) == (200, "0.000")


async def test_a_client_that_leaves_while_queued_is_cancelled_at_once(fleet: World) -> None:
    await fleet.add_engine("a")
    asking, _ = await queued(fleet)
    left_s = time.monotonic()
    asking.cancel()
    ended = await fleet.outcome()
    assert time.monotonic() - left_s < 1.0
    assert (ended.outcome, ended.status, ended.reason) == ("cancelled", 499, "client_disconnected")
    assert (ended.pool, ended.instance) == (pool_of(fleet), None), "SLOMax finds it by its pool"


async def test_the_class_timeout_ends_a_queued_request(fleet: World) -> None:
    await fleet.add_engine("a")
    asking, _ = await queued(fleet, timeout_s=0.8)
    status, body, _ = await asking
    assert (status, body["error"]["code"]) == (504, "deadline")
    ended = await fleet.outcome()
    assert (ended.outcome, ended.status, ended.instance) == ("timed_out", 504, None)
    assert 0.7 < ended.e2e_s < 1.6


async def test_the_policys_timeout_ends_a_queued_request_and_a_class_may_have_more(
    nats_server: NatsServer, ingress: IngressProcess
) -> None:
    policy = Policy(request_timeout_s=0.6)
    async with world(nats_server.settings("operator"), ingress.url, policy) as fleet:
        engine = await fleet.add_engine("a")
        asking, _ = await queued(fleet)
        assert (await asking)[0] == 504
        assert (await fleet.outcome()).outcome == "timed_out"
        asking, submitted = await queued(fleet, timeout_s=30.0)
        await asyncio.sleep(0.8)
        assert not asking.done()
        await fleet.answer(submitted, route(submitted, pool_of(fleet), engine.name))
        assert (await asking)[0] == 200


async def test_an_admitted_requests_own_timeout_holds_at_the_engine(fleet: World) -> None:
    engine = await fleet.add_engine("a", hang)
    fleet.decide = lambda submitted: [
        admit(submitted, pool_of(fleet), timeout_s=0.7),
        route(submitted, pool_of(fleet), engine.name),
    ]
    status, body, _ = await post(fleet)
    assert (status, body["error"]["code"]) == (504, "deadline")
    await asyncio.wait_for(engine.cancelled.wait(), 2)


async def test_silence_after_queued_is_asked_again_and_then_decided_alone(fleet: World) -> None:
    await fleet.add_engine("a")
    asking, first = await queued(fleet, valid_s=0.5)
    fleet.decide = None
    again = await asyncio.wait_for(fleet.submitted.get(), 3)
    assert again == first, "the same event: everybody recognises it"
    status, _, _ = await asking
    assert status == 200
    assert (await fleet.outcome()).degraded


async def test_another_decider_takes_a_queued_request_over(fleet: World) -> None:
    engine = await fleet.add_engine("a")
    asking, _ = await queued(fleet, valid_s=0.5)
    again = await asyncio.wait_for(fleet.submitted.get(), 3)
    await asyncio.sleep(0.2)
    await fleet.answer(again, route(again, pool_of(fleet), engine.name))
    assert (await asking)[0] == 200
    assert not (await fleet.outcome()).degraded


async def test_a_refusal_has_the_same_code_whether_the_request_was_queued_or_not(fleet: World) -> None:
    await fleet.add_engine("a")
    asking, submitted = await queued(fleet)
    await fleet.answer(submitted, refuse(submitted, pool_of(fleet)))
    late = await asking
    fleet.decide = lambda submitted: [refuse(submitted, pool_of(fleet))]
    early = await post(fleet)
    for status, body, headers in (late, early):
        assert (status, body["error"]["code"], headers["Retry-After"]) == (429, "admission_slack", "3")
    for _ in range(2):
        ended = await asyncio.wait_for(fleet.ended.get(), 3)
        assert (ended.outcome, ended.status) == ("rejected", 429)


async def test_a_stopping_ingress_ends_what_is_queued_as_unavailable(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    environment = nats_server.environment("ingress")
    process = ingress_process(environment, tmp_path, TOKENFLEET_INGRESS_DRAIN_TIMEOUT_S="0.3")
    process.start()
    async with world(nats_server.settings("operator"), process.url) as fleet:
        await fleet.add_engine("a")
        asking, _ = await queued(fleet)
        assert await asyncio.to_thread(process.stop) == 0
        status, body, _ = await asking
        assert (status, body["error"]["code"]) == (503, "ingress_stopped")
        ended = await asyncio.wait_for(fleet.ended.get(), 2)
        assert (ended.outcome, ended.reason) == ("failed", "ingress_stopped")
