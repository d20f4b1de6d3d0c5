"""FleetMind, SLOMax and TokenPilot on a real NATS: a submitted request becomes a routed one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from conftest import NatsServer
from fleets import POOL, record, request, state
from in_process import in_process

import fleetmind.main
import slomax.main
import telemetry_collector.main
import tokenpilot.main
from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.contracts.latency import PoolLatency
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import (
    Admitted,
    Ended,
    Event,
    FirstToken,
    Refused,
    RequestSpec,
    Routed,
    Submitted,
    event_id,
    terminal_event_id,
)
from tokenfleet.service import Service
from tokenfleet.settings import Settings
from tokenpilot.settings import TokenPilotSettings

pytestmark = pytest.mark.integration


def running(
    nats_server: NatsServer, user: str, module: Any, replica: str = "one"
) -> AbstractAsyncContextManager[Service]:
    kind = TokenPilotSettings if module is tokenpilot.main else Settings
    return in_process(nats_server, user, module.start, kind, replica=f"{user}-{replica}")


@dataclass
class Site:
    """Plays the node agents and an ingress."""

    bus: Bus
    answers: list[Event] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    services: dict[str, Service] = field(default_factory=dict)
    """In this process, by user."""

    async def join(self, *instances: str, **changes: Any) -> None:
        bucket = await self.bus.bucket(subjects.BUCKET_INSTANCES)
        for name in instances:
            entry = record(name, kv_events=False, **changes)
            await bucket.put(subjects.instance_key("local", name), msgspec.json.encode(entry))
            self.tasks.append(asyncio.create_task(self._speak(name)))

    async def _speak(self, name: str) -> None:
        while True:
            reading = state(name, time_ns=time.time_ns())
            await self.bus.publish(subjects.node("local", name, "state"), reading, codec="msgpack")
            await asyncio.sleep(0.1)

    async def listen(self) -> None:
        for kind, name in ((Admitted, "admitted"), (Refused, "refused"), (Routed, "routed")):
            subject = f"tf.v1.*.request.*.{name}.ingress-1"
            await self.bus.subscribe(subject, kind, self._answered, ordered=True)

    async def _answered(self, event: Any, _: Delivery) -> None:
        self.answers.append(event)

    async def submit(self, request_id: str, spec: RequestSpec | None = None, attempt: int = 1) -> None:
        event = Submitted(
            event_id=event_id(request_id, attempt, "submitted"),
            request_id=request_id,
            attempt=attempt,
            tenant="acme",
            pool="llama-70b",
            site="local",
            time_ns=1,
            request=spec or request(),
        )
        await self.bus.publish(subjects.request("local", "llama-70b", "submitted"), event)

    async def answer(self, kind: type[Any], request_id: str, timeout_s: float = 5.0) -> Any:
        async with asyncio.timeout(timeout_s):
            while True:
                for event in self.answers:
                    if isinstance(event, kind) and event.request_id == request_id:
                        return event
                await asyncio.sleep(0.005)


@pytest.fixture
async def site(nats_server: NatsServer) -> AsyncIterator[Site]:
    bus = await Bus.connect(nats_server.settings("operator"), "test")
    site = Site(bus)
    tenants = await bus.bucket(subjects.BUCKET_TENANTS)
    await tenants.put("acme", msgspec.json.encode(Tenant(tenant="acme")))
    policy = await bus.bucket(subjects.BUCKET_POLICY)
    await policy.put(subjects.POLICY_KEY, msgspec.json.encode(Policy()))
    await site.listen()
    async with AsyncExitStack() as services:
        for user, module in (
            ("telemetry_collector", telemetry_collector.main),
            ("fleetmind", fleetmind.main),
            ("slomax", slomax.main),
            ("tokenpilot", tokenpilot.main),
        ):
            site.services[user] = await services.enter_async_context(running(nats_server, user, module))
        yield site
        for task in site.tasks:
            task.cancel()
        instances = await bus.bucket(subjects.BUCKET_INSTANCES)
        for key in await instances.items():
            await instances.delete(key)
    await bus.drain()


async def ready(site: Site) -> None:
    """Until the deciders answer: they hear of a new pool within a second or two."""
    for number in range(100):
        await site.submit(f"warm-{number}")
        try:
            routed = await site.answer(Routed, f"warm-{number}", timeout_s=0.2)
        except TimeoutError:
            continue
        # Those asked in vain were remembered, and decided as soon as somebody held the lease.
        for asked in range(number + 1):
            await end(site, msgspec.structs.replace(routed, request_id=f"warm-{asked}"))
        await asyncio.sleep(0.1)
        return
    raise AssertionError("the deciders never answered")


async def end(site: Site, routed: Routed, output_tokens: int = 0) -> None:
    ended = Ended(
        event_id=terminal_event_id(routed.request_id),
        request_id=routed.request_id,
        attempt=routed.attempt,
        tenant="acme",
        pool=POOL,
        site="local",
        time_ns=2,
        outcome="completed",
        reason="stop",
        status=200,
        model="llama-70b",
        stream=True,
        submitted_ns=1,
        e2e_s=1.0,
        output_tokens=output_tokens,
    )
    await site.bus.publish(subjects.request("local", POOL, "completed"), ended)


async def serve(site: Site, routed: Routed, output_tokens: int = 20) -> None:
    """The engine's first token, then the rest of the answer."""
    await asyncio.sleep(0.1)
    first = FirstToken(
        event_id=event_id(routed.request_id, routed.attempt, "first_token"),
        request_id=routed.request_id,
        attempt=routed.attempt,
        tenant="acme",
        pool=POOL,
        site="local",
        time_ns=2,
        instance=routed.instance,
        ttft_s=0.1,
    )
    await site.bus.publish(subjects.request("local", POOL, "first_token"), first)
    await asyncio.sleep(0.2)
    await end(site, routed, output_tokens)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)


async def test_requests_spread_over_idle_instances_and_each_decision_says_why(site: Site):
    await site.join("a", "b")
    await ready(site)
    for name in ("r1", "r2"):
        await site.submit(name, request(8_000))
        await site.answer(Routed, name)
    first, second = [await site.answer(Routed, name) for name in ("r1", "r2")]
    assert {first.instance, second.instance} == {"a", "b"}
    admitted = await site.answer(Admitted, "r1")
    assert (admitted.request_class, admitted.pool, admitted.objective.ttft_s) == ("interactive", POOL, 4.0)
    assert first.predicted_ttft_s > 0
    assert {candidate.instance for candidate in first.candidates} == {"a", "b"}
    for routed in (first, second):
        await end(site, routed)


async def test_asking_again_gives_the_same_answer_under_the_same_event_id(site: Site):
    await site.join("a", "b")
    await ready(site)
    await site.submit("twice", request(8_000))
    first = await site.answer(Routed, "twice")
    site.answers.clear()
    await site.submit("twice", request(8_000))
    second = await site.answer(Routed, "twice")
    assert (second.event_id, second.instance) == (first.event_id, first.instance)
    await end(site, first)


async def test_a_retry_goes_to_another_instance(site: Site):
    await site.join("a", "b")
    await ready(site)
    await site.submit("again")
    first = await site.answer(Routed, "again")
    site.answers.clear()
    await site.submit("again", request(excluded_instances=(first.instance,)), attempt=2)
    second = await site.answer(Routed, "again")
    assert second.attempt == 2
    assert second.instance != first.instance
    await end(site, second)


async def test_a_busy_fleet_refuses_early_and_takes_requests_again_when_it_is_free(site: Site):
    await site.join("a")
    await ready(site)
    await site.submit("long", request(100_000))
    long = await site.answer(Routed, "long")
    await site.submit("late")
    refused = await site.answer(Refused, "late")
    assert (refused.status, refused.reason) == (429, "predicted_to_miss_objective")
    assert refused.retry_after_s >= 1
    await end(site, long)
    await asyncio.sleep(0.1)
    await site.submit("later")
    await end(site, await site.answer(Routed, "later"))


async def test_a_model_nobody_serves_is_refused_with_404_and_an_unready_pool_with_503(site: Site):
    await site.join("a")
    await ready(site)
    await site.submit("none", request(model="gpt-17"))
    assert (await site.answer(Refused, "none")).status == 404
    for task in site.tasks:
        task.cancel()
    await site.join("other", model="other-model")  # still speaking, so that silence means death
    await asyncio.sleep(2.5)
    await site.submit("dead")
    assert (await site.answer(Refused, "dead")).status == 503


async def test_a_standby_answers_when_the_decider_is_gone(site: Site, nats_server: NatsServer):
    await site.join("a", "b")
    await ready(site)
    async with running(nats_server, "tokenpilot", tokenpilot.main, "two"):
        await asyncio.sleep(0.5)
        await site.submit("one-writer")
        await site.answer(Routed, "one-writer")
        await asyncio.sleep(0.2)
        routed = [event for event in site.answers if isinstance(event, Routed)]
        assert len([event for event in routed if event.request_id == "one-writer"]) == 1
        await end(site, routed[-1])


async def test_what_was_learned_is_published_heard_by_slomax_and_taken_up_by_a_new_tokenpilot(
    site: Site, nats_server: NatsServer
):
    await site.join("a", "b")
    await ready(site)
    for number in range(4):
        await site.submit(f"lesson-{number}", request(8_000))
        await serve(site, await site.answer(Routed, f"lesson-{number}"))

    def observed_by(service: Service) -> int:
        return service.health()["observations"].get(POOL, 0)

    # Each answer teaches twice: how long its prompt took, and its decoding.
    await until(lambda: observed_by(site.services["slomax"]) >= 8)
    bucket = await site.bus.bucket(subjects.BUCKET_LATENCY)
    stored = await bucket.get(subjects.latency_key("local", POOL))
    assert stored is not None
    learned = msgspec.json.decode(stored[0], type=PoolLatency)
    assert (learned.pool, learned.site, learned.profiles.keys()) == (POOL, "local", {"a", "b"})
    assert min(factors.prefill for factors in learned.factors.values()) < 1.0, "faster than their profile"
    assert sum(map(sum, learned.lengths.by_input)) > 0
    observations = sum(factors.observations for factors in learned.factors.values())
    assert observed_by(site.services["slomax"]) == observed_by(site.services["tokenpilot"]) == observations
    async with running(nats_server, "tokenpilot", tokenpilot.main, "two") as successor:
        assert observed_by(successor) == observations, "it begins with all that was learned"
