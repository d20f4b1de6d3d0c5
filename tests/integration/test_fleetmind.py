"""FleetMinds of several sites on a real NATS: what they tell each other, and what an entry makes of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from conftest import NatsServer
from in_process import in_process
from unit.fleetmind.worlds import MODEL, capacity, request, summary

import fleetmind.grants
import fleetmind.main
from fleetmind.policy.backoff import FIRST_LIMIT_S
from fleetmind.policy.granting import Granter
from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.contracts.control import Adjusted, Capacity
from tokenfleet.contracts.policy import Fleet, Policy, Rollout, Tenant
from tokenfleet.contracts.requests import Event, Placed, Refused, RequestSpec, Submitted, event_id
from tokenfleet.contracts.sites import Fared, Happened
from tokenfleet.service import Service

pytestmark = pytest.mark.integration

POOL = f"{MODEL}@v1"
HEADROOM_S = (1 - Fleet().reserve_share) * FIRST_LIMIT_S
"""Of a pool of one idle instance."""
ACME = Tenant(tenant="acme")


def running(nats_server: NatsServer, site: str) -> AbstractAsyncContextManager[Service]:
    return in_process(nats_server, "fleetmind", fleetmind.main.start, site=site, replica=f"fleetmind-{site}")


@dataclass
class World:
    """Plays each site's collector and TokenPilot, the ingresses, and the policy's operator."""

    bus: Bus
    services: dict[str, Service] = field(default_factory=dict)
    pools: dict[tuple[str, str], tuple[Capacity, list[float]]] = field(default_factory=dict)
    answers: dict[str, Event] = field(default_factory=dict)
    adjusted: list[Adjusted] = field(default_factory=list)
    count: int = 0

    def has(self, site: str, *backlog_s: float, **changes: Any) -> None:
        """A site says from now on that it has a pool, with so much before each instance."""
        said = capacity(site, ready=len(backlog_s), instances=max(1, len(backlog_s)), **changes)
        self.pools[site, said.version] = said, list(backlog_s)

    async def speak(self) -> None:
        while True:
            for (site, version), (said, backlog_s) in list(self.pools.items()):
                subject = subjects.capacity(site, said.pool)
                await self.bus.publish(subject, said.model_dump_json().encode())
                told = summary(site, backlog_s, version, cached=[[]] * len(backlog_s))
                await self.bus.publish(subjects.summary(site, said.pool), told, codec="msgpack")
            await asyncio.sleep(0.1)

    async def set_policy(self, **fleet: Any) -> None:
        bucket = await self.bus.bucket(subjects.BUCKET_POLICY)
        await bucket.put(subjects.POLICY_KEY, msgspec.json.encode(Policy(fleet=Fleet(**fleet))))
        await asyncio.sleep(0.1)

    async def put_tenant(self, tenant: Tenant) -> None:
        bucket = await self.bus.bucket(subjects.BUCKET_TENANTS)
        await bucket.put(tenant.tenant, msgspec.json.encode(tenant))
        await asyncio.sleep(0.1)

    async def heard(self, event: Any, _: Delivery) -> None:
        self.answers[event.request_id] = event

    async def changed(self, message: Any) -> None:
        self.adjusted.append(Adjusted.model_validate_json(message.data))

    async def ask(
        self, spec: RequestSpec | None = None, entry: str = "A", tenant: str = "acme", timeout_s: float = 5.0
    ) -> Any:
        """What becomes of a request that enters somewhere."""
        self.count += 1
        request_id = f"r{self.count}"
        spec = msgspec.structs.replace(spec or request(), entry_site=entry)
        event = Submitted(
            event_id=event_id(request_id, 1, "submitted"),
            request_id=request_id,
            attempt=1,
            tenant=tenant,
            pool=MODEL,
            site=entry,
            time_ns=1,
            request=spec,
        )
        async with asyncio.timeout(timeout_s):
            await self.bus.publish(subjects.request(entry, MODEL, "submitted"), event)
            while request_id not in self.answers:
                await asyncio.sleep(0.002)
        return self.answers[request_id]

    async def until_placed(self, reason: str, entry: str = "A", timeout_s: float = 5.0) -> Placed:
        async with asyncio.timeout(timeout_s):
            while True:
                with contextlib.suppress(TimeoutError):  # nobody answers who has heard of no site
                    answer = await self.ask(entry=entry, timeout_s=0.3)
                    if isinstance(answer, Placed) and answer.reason == reason:
                        return answer
                await asyncio.sleep(0.1)

    async def fares(self, placed: Placed, happened: Happened) -> None:
        told = Fared(request_id=placed.request_id, site=placed.site, pool=placed.pool, happened=happened)
        await self.bus.publish(subjects.fared("A"), told, codec="msgpack")


@pytest.fixture
async def world(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Sites A and D without engines, B with them."""
    # As if it had granted for long: a new one waits until the leases of the one before are over.
    monkeypatch.setattr(fleetmind.grants, "Granter", lambda now_s: Granter(now_s - 10.0))
    bus = await Bus.connect(nats_server.settings("operator"), "test")
    world = World(bus)
    await world.put_tenant(ACME)
    await world.set_policy()
    await bus.subscribe("tf.v1.*.request.*.placed", Placed, world.heard, ordered=True)
    await bus.subscribe("tf.v1.*.request.*.refused.*", Refused, world.heard, ordered=True)
    await bus.subscribe_raw(subjects.ALL_CONTROL, world.changed)
    speaking = asyncio.create_task(world.speak())
    async with AsyncExitStack() as services:
        for site in ("A", "B", "D"):
            world.services[site] = await services.enter_async_context(running(nats_server, site))
        yield world
    speaking.cancel()
    await bus.drain()


async def test_an_entry_without_engines_uses_what_another_site_grants_and_says_what_it_weighed(world: World):
    world.has("B", 0.0)
    world.has("C", 6.0)
    placed = await world.until_placed("nearest_free")
    assert (placed.site, placed.pool) == ("B", POOL)
    assert sum(lease.work_s for lease in placed.leases) == pytest.approx(0.09, abs=0.05)
    costs = {one.site: one for one in placed.weighed}
    assert costs["B"].out is None and costs["C"].out is None  # C was not asked for: it costs more
    assert costs["B"].cost_s < costs["C"].cost_s
    assert placed.out == {}


async def test_two_entries_never_spend_the_same_headroom(world: World):
    world.has("B", 0.0)
    await asyncio.gather(world.until_placed("nearest_free"), world.until_placed("nearest_free", "D"))
    await asyncio.sleep(0.6)
    # 40 requests of 0.7 s each at once: four times what B can take.
    answers = await asyncio.gather(*(world.ask(request(10_000), "AD"[at % 2]) for at in range(40)))
    spent_s = sum(lease.work_s for answer in answers for lease in answer.leases)
    assert {answer.site for answer in answers} == {"B"}
    assert {answer.reason for answer in answers} == {"nearest_free", "not_granted"}
    assert 0.5 * HEADROOM_S < spent_s <= HEADROOM_S + 1e-6


async def test_what_no_site_can_take_is_refused_at_the_entry_with_the_reason_of_each(world: World):
    world.has("B", 0.0, region="eu", adapters=["chat"])
    await world.until_placed("nearest_free")
    for spec, status, reason in (
        (request(regions=("us",)), 403, "region_not_permitted"),
        (request(sites=("A",)), 403, "site_not_permitted"),
        (request(adapter="sql"), 404, "adapter_missing"),
        (request(200_000), 400, "context_too_long"),
        (request(version="v9"), 404, "version_not_found"),
    ):
        refused = await world.ask(spec)
        assert isinstance(refused, Refused)
        assert (refused.site, refused.status, refused.reason) == ("A", status, reason)
        why = "other_version" if reason == "version_not_found" else reason
        assert [(one.site, one.out) for one in refused.weighed] == [("B", why)]
        assert refused.message


async def test_a_site_that_refuses_what_is_sent_there_gets_less_and_then_slowly_more(world: World):
    world.has("A", 9.0)
    world.has("B", 0.0)
    placed = await world.until_placed("better_elsewhere")
    for _ in range(4):
        await world.fares(placed, "refused")
        await asyncio.sleep(0.51)
    answers = [await world.ask() for _ in range(30)]
    away = [answer for answer in answers if answer.site == "B"]
    assert len(away) < 10
    backing_off = next(answer for answer in answers if answer.site == "A")
    assert backing_off.reason == "backing_off"
    assert {one.site: one.out for one in backing_off.weighed} == {"A": None, "B": "backing_off"}
    health = world.services["A"].health
    assert health is not None
    assert health()["diverted_share"][f"B/{POOL}"] < 0.2


async def test_what_may_not_leave_its_region_does_not_when_a_site_moves_or_its_entry_starts_anew(
    world: World, nats_server: NatsServer
):
    await world.put_tenant(Tenant(tenant="bound", regions=("eu",)))
    world.has("B", 0.0, region="eu")
    await world.until_placed("nearest_free")
    assert (await world.ask(tenant="bound")).site == "B"
    world.has("B", 0.0, region="us")
    await asyncio.sleep(0.3)
    assert (await world.ask(tenant="bound")).reason == "region_not_permitted"
    world.has("B", 0.0, region=None)
    await asyncio.sleep(0.3)
    assert (await world.ask(tenant="bound")).reason == "region_unknown"
    # A second replica of the entry, which has just started, is asked as often as the first.
    async with running(nats_server, "A"):
        await asyncio.sleep(0.3)
        answers = [await world.ask(tenant="bound") for _ in range(20)]
    assert {type(answer) for answer in answers} == {Refused}


async def test_versions_get_their_weights_are_drained_and_rolled_back_and_pins_are_honoured(world: World):
    world.has("B", 0.0, 0.0, version="v1")
    world.has("B", 0.0, version="v2")
    await world.until_placed("nearest_free")

    async def versions(count: int = 40) -> set[str]:
        return {(await world.ask()).pool for _ in range(count)}

    old, new = f"{MODEL}@v1", f"{MODEL}@v2"
    weights = {"v1": 0.5, "v2": 0.5}
    await world.set_policy(rollouts={MODEL: Rollout(weights=weights, warm_up_s=0.0)})
    assert await versions() == {old, new}
    for number in range(60):
        placed = await world.ask()
        await world.fares(placed, "failed" if placed.pool == new and number % 2 else "ended")
    async with asyncio.timeout(5):
        while not world.adjusted:
            await world.fares(await world.ask(request(version="v2")), "failed")
            await world.fares(await world.ask(request(version="v1")), "ended")
    (message,) = world.adjusted
    assert (message.knob, message.before, message.after) == (f"fleet.rollouts.{MODEL}.weights.v2", 0.5, 0.0)
    assert await versions() == {old}
    assert (await world.ask(request(version="v2"))).pool == new  # who wants it all the same gets it
    await world.set_policy(rollouts={MODEL: Rollout(weights={"v1": 1.0}, drained=("v2",))})
    refused = await world.ask(request(version="v2"))
    assert (refused.status, refused.reason) == (404, "version_drained")
    assert await versions() == {old}
