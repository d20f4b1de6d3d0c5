"""What clients may ask for, end to end, and what they may not have more of."""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from conftest import NatsServer
from integration.ingress_world import (
    TENANT,
    IngressProcess,
    World,
    answer_well,
    drop_connection,
    hang,
    ingress_process,
    refuse,
    world,
)

from tokenfleet import subjects
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import Objective, Retried

pytestmark = pytest.mark.integration

PROMPT = "four " * 80
"""100 tokens of four characters."""


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
        await fleet.set_tenant()


Limit = Callable[[int], Awaitable[dict[str, str]]]


@pytest.fixture
async def limit(fleet: World) -> AsyncIterator[Limit]:
    """Makes a tenant of its own, with a full bucket of so many tokens; gives the headers of its clients."""
    bucket = await fleet.bus.bucket(subjects.BUCKET_TENANTS)
    name = f"limited-{secrets.token_hex(4)}"

    async def make(tokens_per_minute: int) -> dict[str, str]:
        key_hash = hashlib.sha256(name.encode()).hexdigest()
        tenant = Tenant(tenant=name, key_hashes=(key_hash,), tokens_per_minute=tokens_per_minute)
        await bucket.put(subjects.token(name), msgspec.json.encode(tenant))
        await asyncio.sleep(0.2)
        return {"Authorization": f"Bearer {name}"}

    yield make
    await bucket.delete(subjects.token(name))


async def post(
    fleet: World, headers: dict[str, str] | None = None, **more: Any
) -> tuple[int, dict[str, Any], Any]:
    body = {"model": fleet.model, "prompt": PROMPT, "max_tokens": 9, **more}
    async with fleet.session.post("/v1/completions", json=body, headers=headers) as response:
        return response.status, json.loads(await response.read()), response.headers


# -- what clients ask for


async def test_what_a_client_asks_for_reaches_the_deciders(fleet: World) -> None:
    await fleet.set_tenant(tier="priority")
    engine = await fleet.add_engine("a")
    headers = {
        "x-slo-ttft-ms": "1500",
        "X-LLM-D-SLO-TPOT-MS": "80",
        "x-gateway-inference-objective": "long_context",
        "x-gateway-inference-fairness-id": "ann",
        "x-llm-d-inference-ttl": "2500ms",
        "x-tenant": "other",
    }
    status, _, _ = await post(fleet, headers, service_tier="priority")
    assert status == 200
    submitted = await fleet.submitted.get()
    assert submitted.tenant == TENANT.tenant, "only the key says who asks"
    request = submitted.request
    assert (request.service_tier, request.task) == ("priority", "long_context")
    assert request.objective == Objective(ttft_s=1.5, tpot_s=0.08)
    assert (request.fairness_id, request.queue_ttl_s) == ("ann", 2.5)
    assert not {"x-slo-ttft-ms", "x-gateway-inference-fairness-id"} & engine.headers[0].keys()


async def test_a_client_that_asks_for_nothing_gets_the_default_tier(fleet: World) -> None:
    await fleet.add_engine("a")
    await post(fleet, service_tier=None)
    request = (await fleet.submitted.get()).request
    assert (request.service_tier, request.task, request.objective) == ("default", None, None)
    assert (request.fairness_id, request.queue_ttl_s) == (None, None)


@pytest.mark.parametrize(
    ("tenant_tier", "asked", "in_force"),
    [("default", "priority", "default"), ("flex", "priority", "flex"), ("priority", "auto", "default")],
)
async def test_a_tenant_cannot_raise_itself_above_its_tier(
    fleet: World, tenant_tier: str, asked: str, in_force: str
) -> None:
    await fleet.set_tenant(tier=tenant_tier)
    await fleet.add_engine("a")
    assert (await post(fleet, service_tier=asked))[0] == 200
    assert (await fleet.submitted.get()).request.service_tier == in_force


@pytest.mark.parametrize(
    ("headers", "more", "param", "says"),
    [
        ({}, {"service_tier": "scale"}, "service_tier", "auto, default, priority, flex"),
        ({}, {"service_tier": 3}, "service_tier", "str"),
        ({"x-slo-ttft-ms": "soon"}, {}, "x-slo-ttft-ms", "milliseconds"),
        ({"x-llm-d-slo-tpot-ms": "-1"}, {}, "x-llm-d-slo-tpot-ms", "milliseconds"),
        ({"x-queue-ttl-ms": "0"}, {}, "x-queue-ttl-ms", "milliseconds"),
        ({"x-llm-d-inference-ttl": "2"}, {}, "x-llm-d-inference-ttl", "1500ms"),
        ({"x-gateway-inference-objective": "gold"}, {}, "x-gateway-inference-objective", "interactive"),
        ({"x-gateway-inference-fairness-id": "a b"}, {}, "x-gateway-inference-fairness-id", "128"),
    ],
)
async def test_what_means_nothing_is_a_clear_400_before_anything_is_asked(
    fleet: World, headers: dict[str, str], more: dict[str, Any], param: str, says: str
) -> None:
    await fleet.add_engine("a")
    status, body, _ = await post(fleet, headers, **more)
    assert status == 400
    assert (body["error"]["param"], body["error"]["code"]) == (param, "invalid_value")
    assert says in body["error"]["message"]
    assert fleet.submitted.empty()
    assert fleet.ended.empty()


# -- tokens per minute


async def test_a_tenant_that_has_used_its_tokens_is_told_when_there_are_more(
    fleet: World, limit: Limit
) -> None:
    tenant = await limit(200)
    engine = await fleet.add_engine("a", hang)
    first = asyncio.create_task(post(fleet, tenant))
    await asyncio.wait_for(engine.begun.wait(), 3)
    status, body, headers = await post(fleet, tenant)
    assert (status, body["error"]["code"]) == (429, "tenant_token_rate")
    # 109 and 109 of 200: 18 tokens too many, at 200 a minute, and up to a second until refilling begins.
    assert 5 <= int(headers["Retry-After"]) <= 7
    ended = await asyncio.wait_for(fleet.ended.get(), 3)
    assert (ended.outcome, ended.status, ended.reason) == ("rejected", 429, "tenant_token_rate")
    first.cancel()


async def test_tokens_that_were_not_used_come_back(fleet: World, limit: Limit) -> None:
    tenant = await limit(1_000)
    await fleet.add_engine("a")
    # Each reserves 700 and uses 24.
    for _ in range(5):
        assert (await post(fleet, tenant, max_tokens=600))[0] == 200


async def test_refused_requests_give_everything_back(fleet: World, limit: Limit) -> None:
    tenant = await limit(200)
    await fleet.add_engine("a")
    pool = next(iter(fleet.records.values())).pool
    fleet.decide = lambda submitted: [refuse(submitted, pool)]
    for _ in range(4):
        status, body, _ = await post(fleet, tenant)
        assert (status, body["error"]["code"]) == (429, "admission_slack")


async def test_a_retried_request_is_charged_once(fleet: World, limit: Limit) -> None:
    tenant = await limit(200)
    await fleet.add_engine("a", drop_connection)
    await fleet.add_engine("b")
    assert (await post(fleet, tenant))[0] == 200
    assert (await fleet.outcome()).attempt == 2
    # 24 of 200 are used; after a second attempt charged too there would be less than 109 for this one.
    assert (await post(fleet, tenant, max_tokens=60))[0] == 200


async def test_a_prompt_beyond_a_minutes_tokens_is_not_sent_away_to_come_again(
    fleet: World, limit: Limit
) -> None:
    tenant = await limit(50)
    await fleet.add_engine("a")
    status, body, headers = await post(fleet, tenant)
    assert (status, body["error"]["code"]) == (400, "prompt_exceeds_token_rate")
    assert "Retry-After" not in headers


# -- retries


async def test_retries_have_a_budget(nats_server: NatsServer, tmp_path: Path) -> None:
    process = ingress_process(nats_server.environment("ingress"), tmp_path)
    process.start()
    async with world(nats_server.settings("operator"), process.url) as fleet:
        await fleet.add_engine("a", drop_connection)
        await fleet.add_engine("b")
        answers = [await post(fleet) for _ in range(5)]
        assert [status for status, _, _ in answers] == [200, 200, 200, 503, 503]
        _, body, headers = answers[-1]
        assert body["error"]["code"] == "retry_budget_exhausted"
        assert int(headers["Retry-After"]) >= 1
        outcomes = [await asyncio.wait_for(fleet.ended.get(), 3) for _ in range(5)]
        assert [(ended.outcome, ended.attempt) for ended in outcomes] == [("completed", 2)] * 3 + [
            ("failed", 1)
        ] * 2
        assert sum(isinstance(fact, Retried) for fact in fleet.facts) == 3
    assert process.stop() == 0


async def test_a_retry_that_nobody_waits_for_any_more_is_not_made(
    nats_server: NatsServer, ingress: IngressProcess
) -> None:
    async def fail_late(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(1.0)
        return await drop_connection(request, body)

    policy = Policy(request_timeout_s=0.6)
    async with world(nats_server.settings("operator"), ingress.url, policy) as fleet:
        await fleet.add_engine("a", fail_late)
        other = await fleet.add_engine("b", answer_well)
        status, body, _ = await post(fleet)
        assert (status, body["error"]["code"]) == (504, "deadline")
        await asyncio.sleep(0.8)
        assert other.bodies == []


async def test_without_deciders_a_tenant_of_other_sites_is_not_served_here(fleet: World):
    """Law holds when ingress decides alone, too: the prompt goes to no engine of this site."""
    engine = await fleet.add_engine("a")
    await fleet.set_tenant(sites=("elsewhere",))
    fleet.decide = None
    status, body, _ = await post(fleet)
    assert (status, body["error"]["code"]) == (503, "no_ready_instance")
    assert not engine.bodies
