"""The long loop on a real NATS: who plans, from what, and what the others and KEDA hear of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner
from conftest import NatsServer
from in_process import in_process
from unit.fleetmind.worlds import MODEL, capacity, request, summary

import fleetmind.asking
import fleetmind.main
from console.main import cli
from fleetmind.policy.planning.forecast import INTERVAL_S
from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.contracts.control import Plan
from tokenfleet.contracts.policy import Fleet, Policy, PoolScaling, Scaling, SiteScaling, Tenant
from tokenfleet.contracts.requests import Submitted, event_id
from tokenfleet.contracts.sites import Asked, AskedOf
from tokenfleet.service import Service

pytestmark = pytest.mark.integration

POOL = f"{MODEL}@v1"
HOME, AWAY = "local", "remote"
"""The stream of the tests' NATS is that of the first."""
IN_FORCE = Scaling(
    dry_run=False,
    pools={POOL: PoolScaling(gpus=4, max=8)},
    sites={HOME: SiteScaling(gpus=64), AWAY: SiteScaling(gpus=64)},
)


def running(nats_server: NatsServer, site: str, replica: str) -> AbstractAsyncContextManager[Service]:
    return in_process(nats_server, "fleetmind", fleetmind.main.start, site=site, replica=replica)


@dataclass
class World:
    """Plays the collectors, the FleetMinds of before and the policy's operator."""

    bus: Bus
    ready: dict[str, int] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    async def speak(self) -> None:
        while True:
            for site, count in list(self.ready.items()):
                said = capacity(site, ready=count, instances=count)
                await self.bus.publish(subjects.capacity(site, said.pool), said.model_dump_json().encode())
                told = summary(site, [0.0] * count)
                await self.bus.publish(subjects.summary(site, said.pool), told, codec="msgpack")
            await asyncio.sleep(0.1)

    async def was_asked(self, site: str, work: float, intervals: int = 30) -> None:
        """The same was asked in each interval up to the one before last."""
        latest_s = time.time() // INTERVAL_S * INTERVAL_S - 2 * INTERVAL_S
        for back in reversed(range(intervals)):
            start_s = int(latest_s - back * INTERVAL_S)
            told = Asked(
                site=site,
                replica="before",
                interval_start_s=start_s,
                interval_s=int(INTERVAL_S),
                asked=(AskedOf(model=MODEL, work=work),),
            )
            await self.bus.publish(subjects.asked(site), told)
        await self.bus.flush()

    async def set_scaling(self, scaling: Scaling) -> None:
        bucket = await self.bus.bucket(subjects.BUCKET_POLICY)
        policy = Policy(fleet=Fleet(scaling=scaling))
        await bucket.put(subjects.POLICY_KEY, msgspec.json.encode(policy))

    async def until(self, met: Callable[[], Any], timeout_s: float = 10.0) -> Any:
        async with asyncio.timeout(timeout_s):
            while not (found := met()):
                await asyncio.sleep(0.02)
            return found

    async def plan(self, by: str, count: int = 1) -> Plan:
        """The so-manieth plan that a site made."""
        return await self.until(lambda: [plan for plan in self.plans if plan.site == by][count - 1 : count])

    async def heard_plan(self, message: Any) -> None:
        self.plans.append(Plan.model_validate_json(message.data))

    async def heard_asked(self, message: Asked, _: Delivery) -> None:
        self.asked.append(message)


@pytest.fixture
async def world(nats_server: NatsServer) -> AsyncIterator[World]:
    """Two engines at home, one away."""
    bus = await Bus.connect(nats_server.settings("operator"), "test")
    world = World(bus, {HOME: 2, AWAY: 1})
    await (await bus.bucket(subjects.BUCKET_TENANTS)).put("acme", msgspec.json.encode(Tenant(tenant="acme")))
    await bus.subscribe_raw(subjects.ALL_PLANS, world.heard_plan)
    await bus.subscribe(subjects.ALL_ASKED, Asked, world.heard_asked, ordered=True)
    speaking = asyncio.create_task(world.speak())
    yield world
    speaking.cancel()
    await bus.drain()


async def told(service: Service, path: str) -> tuple[int, dict[str, Any]]:
    """What this replica's admin port answers."""
    async with TestClient(TestServer(service.admin_app)) as client:
        response = await client.get(path)
        return response.status, await response.json()


async def shown_by_command(service: Service) -> str:
    """What `tokenfleet plan` prints of this replica's plan."""
    async with TestServer(service.admin_app) as server:
        url = str(server.make_url("/"))
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["plan", "--url", url])
    assert result.exit_code == 0, result.output
    return result.output


async def test_one_replica_plans_for_all_sites_and_every_replica_tells_keda(
    nats_server: NatsServer, world: World
):
    await world.set_scaling(IN_FORCE)
    engines, world.ready = world.ready, {}
    async with (
        running(nats_server, HOME, "a1") as first,
        running(nats_server, HOME, "a2") as second,
        running(nats_server, AWAY, "b1") as other,
    ):
        services = (first, second, other)
        await world.was_asked(HOME, 3.0)
        await world.was_asked(AWAY, 0.4)
        world.ready = engines
        (plan,) = await world.plan(HOME)
        assert [service.health()["planning"] for service in (first, second)].count(True) == 1
        assert plan.covers == [HOME, AWAY]
        assert [one.expected for one in plan.forecasts] == pytest.approx([3.0, 0.4])
        wanted = {pool.site: pool.wanted for pool in plan.pools}
        assert wanted[HOME] >= 4
        for service in services:
            await world.until(lambda: service.health()["plan_age_s"] is not None)  # noqa: B023
            status, body = await told(service, f"/v1/plan/{POOL}")
            assert (status, body["replicas"]) == (200, wanted[service.settings.site])
        shown = await shown_by_command(first)
        assert str(wanted[HOME]) in shown and "KEDA is told what is wanted" in shown
        stored = [
            one async for one in world.bus.read_stored(subjects.STREAM_FLEET, [subjects.planned(HOME)], 1)
        ]
        assert Plan.model_validate_json(stored[-1].data) == plan
        assert {plan.site for plan in world.plans} == {HOME}


async def test_whoever_takes_over_plans_with_what_was_asked_before(nats_server: NatsServer, world: World):
    await world.set_scaling(IN_FORCE)
    await world.was_asked(HOME, 3.0)
    async with running(nats_server, HOME, "a2") as second:
        (first,) = await world.plan(HOME)
        async with running(nats_server, HOME, "a3") as third:
            await second.stop()
            await world.until(lambda: third.health()["planning"])
            (after,) = await world.plan(HOME, 2)
    assert after.forecasts[0].expected == pytest.approx(first.forecasts[0].expected)
    assert {pool.site: pool.wanted for pool in after.pools} == {
        pool.site: pool.wanted for pool in first.pools
    }


async def test_in_a_dry_run_the_plan_is_told_and_keda_hears_what_runs(nats_server: NatsServer, world: World):
    await world.set_scaling(msgspec.structs.replace(IN_FORCE, dry_run=True))
    await world.was_asked(HOME, 3.0)
    async with running(nats_server, HOME, "a1") as service:
        (plan,) = await world.plan(HOME)
        assert plan.dry_run
        assert {pool.site: pool.wanted for pool in plan.pools}[HOME] >= 4
        status, body = await told(service, f"/v1/plan/{POOL}")
        assert (status, body["replicas"], body["current"], body["dry_run"]) == (200, 2, 2, True)


async def test_before_anything_is_known_of_demand_keda_is_told_to_fall_back_and_why(
    nats_server: NatsServer, world: World
):
    async with running(nats_server, "C", "c1") as service:
        world.ready["C"] = 1
        await world.until(lambda: service.health()["planning"])
        await asyncio.sleep(1.5)
        status, body = await told(service, "/v1/plan")
    assert status == 503
    assert "demand is counted for the first time" in body["error"]


async def test_what_enters_at_a_site_is_told_to_all_once_an_interval(
    nats_server: NatsServer, world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fleetmind.asking, "INTERVAL_S", 2.0)
    async with running(nats_server, HOME, "d1") as service:
        await world.until(lambda: service.health()["pools"])

        def of_mine() -> list[float]:
            return [one.work for told in world.asked if told.replica == "d1" for one in told.asked]

        await world.until(lambda: [told for told in world.asked if told.replica == "d1"])
        for attempt in (1, 2):
            event = Submitted(
                event_id=event_id("r", attempt, "submitted"),
                request_id="r",
                attempt=attempt,
                tenant="acme",
                pool=MODEL,
                site=HOME,
                time_ns=time.time_ns(),
                request=request(8_000, entry_site=HOME),
            )
            await world.bus.publish(subjects.request(HOME, MODEL, "submitted"), event)
        await world.until(of_mine)
        await asyncio.sleep(2.5)
    # 8,000 tokens of prefill and an answer, once, in an interval of two seconds.
    assert sum(of_mine()) == pytest.approx((8_000 * 71.4e-6 + 0.12) / 2.0, rel=0.35)
