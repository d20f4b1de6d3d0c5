"""What users of other routers report of the request path, turned into what TokenFleet does instead.

Rows are those of docs/peers-complaints.md.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from conftest import NatsServer
from integration.ingress_world import (
    KEY,
    IngressProcess,
    World,
    admit,
    drop_connection,
    hang,
    ingress_process,
    route,
    stream_for_ever,
    world,
)

from tokenfleet import subjects
from tokenfleet.contracts.policy import Policy

pytestmark = pytest.mark.integration

DEADLINE_S = 1.0


@pytest.fixture(scope="module")
def ingress(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngressProcess]:
    process = ingress_process(nats_server.environment("ingress"), tmp_path_factory.mktemp("ingress"))
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
async def fleet(nats_server: NatsServer, ingress: IngressProcess) -> AsyncIterator[World]:
    policy = Policy(request_timeout_s=DEADLINE_S)
    async with world(nats_server.settings("operator"), ingress.url, policy) as fleet:
        yield fleet


def completion(fleet: World, **more: Any) -> dict[str, Any]:
    return {"model": fleet.model, "prompt": "a prompt", "max_tokens": 9, **more}


async def status_of(fleet: World, body: dict[str, Any], **headers: str) -> int:
    async with fleet.session.post("/v1/completions", json=body, headers=headers) as response:
        await response.read()
        return response.status


async def fail_late(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Die when most of the request's time is over."""
    await asyncio.sleep(0.7 * DEADLINE_S)
    return await drop_connection(request, body)


async def test_a_retry_has_only_the_time_that_its_request_has_left(fleet: World):
    """Row 16 (production-stack #749, #382, #619): no timeout, no retry; and a retry must not add its own."""
    await fleet.add_engine("a", fail_late)
    second = await fleet.add_engine("b", hang)
    started_s = time.monotonic()
    assert await status_of(fleet, completion(fleet)) == 504
    assert time.monotonic() - started_s < 1.5 * DEADLINE_S
    ended = await fleet.outcome()
    assert (ended.outcome, ended.attempt, ended.instance) == ("timed_out", 2, second.name)
    await asyncio.wait_for(second.cancelled.wait(), 2.0)


async def test_a_retry_names_the_engine_that_failed_so_that_another_is_chosen(fleet: World):
    """Row 16 (production-stack #619, llm-d-router #1206): retries went to the same engine, or silently elsewhere."""
    failed = await fleet.add_engine("a", drop_connection)
    other = await fleet.add_engine("b")
    assert await status_of(fleet, completion(fleet)) == 200
    first, second = await fleet.submitted.get(), await fleet.submitted.get()
    assert (first.request.excluded_instances, second.request.excluded_instances) == ((), (failed.name,))
    ended = await fleet.outcome()
    assert (ended.attempt, ended.instance, len(other.bodies)) == (2, other.name, 1)
    assert ended.retried_input_tokens > 0, "what the failure cost is on the row"


async def test_a_decision_that_comes_after_the_client_has_left_reaches_no_engine(fleet: World):
    """Row 14 (production-stack #634, #867, #1040): a client that left did not cancel its request."""
    engine = await fleet.add_engine("a")
    fleet.decide = None
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.2):
            await status_of(fleet, completion(fleet))
    submitted = await fleet.submitted.get()
    assert (await fleet.outcome()).outcome == "cancelled"
    pool = fleet.records[engine.name].pool
    for kind, answer in (
        ("admitted", admit(submitted, pool)),
        ("routed", route(submitted, pool, engine.name)),
    ):
        await fleet.bus.publish(subjects.request("local", pool, kind, submitted.request.ingress), answer)
    await asyncio.sleep(0.2)
    assert engine.bodies == []
    assert fleet.ended.empty(), "and it has one outcome"


async def metrics(fleet: World) -> str:
    async with fleet.session.get("/metrics") as response:
        return await response.text()


def value(page: str, name: str, *labels: str) -> float:
    """The sum of a metric's samples that have all these label values."""
    samples = re.findall(rf"^{name}{{([^}}]*)}} ([0-9.e+]+)$", page, flags=re.MULTILINE)
    return sum(float(number) for given, number in samples if all(f'"{label}"' in given for label in labels))


async def test_what_clients_make_up_never_becomes_a_label(fleet: World, ingress: IngressProcess):
    """Row 23 (aibrix #638): unbounded metric labels."""
    await fleet.add_engine("a")
    await status_of(fleet, completion(fleet))
    await status_of(fleet, completion(fleet) | {"model": "made-up"})
    series = len((await metrics(fleet)).splitlines())
    for number in range(5):
        name = f"made-up-{number}"
        more = {"user": name, "metadata": {"task": name}}
        await status_of(fleet, completion(fleet, **more), **{"x-request-id": name, "x-session-id": name})
        await status_of(fleet, completion(fleet) | {"model": name})
    async with (
        aiohttp.ClientSession(ingress.url) as stranger,
        stranger.post("/v1/completions", json={}, headers={"Authorization": f"Bearer {KEY}x"}) as no,
    ):
        assert no.status == 401
    page = await metrics(fleet)
    assert "made-up" not in page
    assert len(page.splitlines()) <= series + 4, "only a first 401 may add a series"


async def test_deciding_alone_is_counted_not_silent(fleet: World):
    """Row 23 (aibrix #2569, #917): a router fell back to random choice and nobody could see it."""
    await fleet.add_engine("a")
    fleet.decide = None
    before = await metrics(fleet)
    assert await status_of(fleet, completion(fleet)) == 200
    assert (await fleet.outcome()).degraded
    after = await metrics(fleet)
    name = "tokenfleet_ingress_degraded_total"
    assert value(after, name, fleet.model) - value(before, name, fleet.model) == 1.0


async def test_a_cancelled_answers_tokens_are_the_same_in_the_ledger_and_in_the_metrics_and_nobody_failed(
    fleet: World,
):
    """Row 33 (vllm #55634, new-api #7134, one-switch #3): counted here and not there, or scored as a failure."""
    engine = await fleet.add_engine("a", stream_for_ever)
    async with fleet.session.post("/v1/completions", json=completion(fleet, stream=True)) as response:
        async for _ in response.content:
            break
    await asyncio.wait_for(engine.cancelled.wait(), 2.0)
    ended = await fleet.outcome()
    assert (ended.outcome, ended.status) == ("cancelled", 499)
    assert ended.output_tokens > 0
    page = await metrics(fleet)
    assert value(page, "gen_ai_client_token_usage_sum", fleet.model, "output") == ended.output_tokens
    assert value(page, "tokenfleet_ingress_requests_total", fleet.model, "cancelled") == 1.0
    assert value(page, "tokenfleet_ingress_requests_total", fleet.model, "failed") == 0.0
