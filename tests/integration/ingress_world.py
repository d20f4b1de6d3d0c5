"""A real ingress process on a real NATS, with engines and deciders that do what a test tells them."""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import fleets
import msgspec
from aiohttp import web

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import (
    Admitted,
    Ended,
    Event,
    FirstToken,
    Objective,
    Queued,
    Refused,
    Retried,
    Routed,
    Submitted,
    event_id,
)

KEY = "sk-" + secrets.token_hex(16)
TENANT = Tenant(tenant="acme", key_hashes=(hashlib.sha256(KEY.encode()).hexdigest(),))
OBJECTIVE = Objective(ttft_s=4.0, tpot_s=0.1)
DECISION_TIMEOUT_S = 0.4

Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
Decide = Callable[[Submitted], Sequence[Event]]


# -- the ingress process


@dataclass
class IngressProcess:
    """An ingress in its own process; its journal stays when it is started again."""

    environment: dict[str, str]
    log: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from ingress.main import main; main()"],
            env=os.environ | self.environment,
            stderr=self.log.open("ab"),
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"ingress did not start: {self.log.read_text()}")

    def stop(self, signum: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(20)


def ingress_process(environment: dict[str, str], folder: Path, **extra: str) -> IngressProcess:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "TOKENFLEET_INGRESS_PORT": str(port),
        "TOKENFLEET_INGRESS_DECISION_TIMEOUT_S": str(DECISION_TIMEOUT_S),
        "TOKENFLEET_STATE_DIR": str(folder),
        **extra,
    }
    return IngressProcess(environment | settings, folder / "ingress.log", port)


# -- an engine


def text_events(words: Sequence[str], *, usage: bool) -> list[bytes]:
    """The events of a streamed completion, and its usage event if it was asked for."""
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "text": word, "finish_reason": None}]} for word in words
    ]
    events[-1]["choices"][0]["finish_reason"] = "length"
    if usage:
        events.append({"choices": [], "usage": usage_of(words)})
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]


def usage_of(words: Sequence[str]) -> dict[str, Any]:
    return {
        "prompt_tokens": 21,
        "completion_tokens": len(words),
        "total_tokens": 21 + len(words),
        "prompt_tokens_details": {"cached_tokens": 16},
    }


async def answer_well(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Three words, as chat or text, streamed or not."""
    words = ["one ", "two ", "three"]
    chat = "messages" in body
    if not body.get("stream"):
        text = "".join(words)
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": "stop", **content}
        whole = {"id": "x", "object": "chat.completion" if chat else "text_completion", "created": 1}
        return web.json_response(
            {**whole, "model": body["model"], "choices": [choice], "usage": usage_of(words)}
        )
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    events = chat_events(words, wants_usage) if chat else text_events(words, usage=wants_usage)
    for event in events:
        await response.write(event)
        await asyncio.sleep(0.01)
    return response


def chat_events(words: Sequence[str], usage: bool) -> list[bytes]:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        *({"content": word} for word in words),
    ]
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    events: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        events.append({**head, "choices": [], "usage": usage_of(words)})
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]


@dataclass
class FakeEngine:
    """An engine's HTTP server. `behaviour` answers; what it received is kept."""

    name: str
    behaviour: Behaviour = answer_well
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    runner: web.AppRunner | None = None

    tokenize: Callable[[dict[str, Any]], web.Response] | None = None
    """What its `/tokenize` answers; None: it has none."""

    async def handle_tokenize(self, request: web.Request) -> web.Response:
        if self.tokenize is None:
            raise web.HTTPNotFound
        return self.tokenize(json.loads(await request.read()))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        self.bodies.append(data)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.begun.set()
        try:
            return await self.behaviour(request, json.loads(data))
        except (asyncio.CancelledError, ConnectionResetError):
            self.cancelled.set()
            raise

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/completions", self.handle)
        app.router.add_post("/v1/chat/completions", self.handle)
        app.router.add_post("/tokenize", self.handle_tokenize)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*self.runner.addresses[0][:2])


async def drop_connection(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Die before answering anything."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(10)
    raise AssertionError


async def drop_after_two_tokens(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Die in the middle of a stream."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in text_events(["one ", "two ", "three"], usage=False)[:2]:
        await response.write(event)
    await asyncio.sleep(0.05)
    return await drop_connection(request, body)


async def hang(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Compute for ever."""
    await asyncio.sleep(60)
    raise AssertionError


async def stream_for_ever(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    while True:
        await response.write(text_events(["word ", ""], usage=False)[0])
        await asyncio.sleep(0.01)


# -- everything around the ingress


@dataclass
class World:
    """The fleet as one test sees it."""

    bus: Bus
    session: aiohttp.ClientSession
    model: str
    decide: Decide | None = None
    """What the deciders answer; None: they are away."""
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    records: dict[str, InstanceRecord] = field(default_factory=dict)
    submitted: "asyncio.Queue[Submitted]" = field(default_factory=asyncio.Queue)
    ended: "asyncio.Queue[Ended]" = field(default_factory=asyncio.Queue)
    facts: list[Event] = field(default_factory=list)

    async def add_engine(
        self,
        name: str,
        behaviour: Behaviour = answer_well,
        tokenize: Callable[[dict[str, Any]], web.Response] | None = None,
        **changes: Any,
    ) -> FakeEngine:
        """Start an engine, register it, and wait until the ingress knows it as ready."""
        engine = FakeEngine(f"{self.model}-{name}", behaviour, tokenize=tokenize)
        await engine.start()
        self.engines[engine.name] = engine
        changes = {"model": self.model, "url": engine.url} | changes
        self.records[engine.name] = fleets.record(engine.name, **changes)
        await self.report()
        pool = self.records[engine.name].pool
        want = sum(record.pool == pool and not record.draining for record in self.records.values())
        await self.until_health(lambda health: health["pools"].get(pool, {}).get("ready") == want)
        return engine

    async def report(self) -> None:
        """What node agents do: renew the registration, publish a reading."""
        bucket = await self.bus.bucket(subjects.BUCKET_INSTANCES)
        for name, record in self.records.items():
            await bucket.put(subjects.instance_key("local", name), msgspec.json.encode(record))
            state = fleets.state(name, pool=record.pool, time_ns=time.time_ns(), generation=record.generation)
            await self.bus.publish(subjects.node("local", name, "state"), state, codec="msgpack")

    async def report_for_ever(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(0.2)

    async def on_submitted(self, submitted: Submitted, _: Delivery) -> None:
        if submitted.request.model != self.model:
            return
        self.submitted.put_nowait(submitted)
        for event in self.decide(submitted) if self.decide else ():
            await self.answer(submitted, event)

    async def answer(self, submitted: Submitted, event: Event) -> None:
        """Say to the ingress that asked what a decider says."""
        kind = event.event_id.rpartition(".")[2]
        subject = subjects.request("local", event.pool, kind, submitted.request.ingress)
        await self.bus.publish(subject, event)

    async def set_tenant(self, **changes: Any) -> None:
        """Change the tenant that asks, and wait until the ingress must have heard of it."""
        bucket = await self.bus.bucket(subjects.BUCKET_TENANTS)
        tenant = msgspec.structs.replace(TENANT, **changes)
        await bucket.put(subjects.token(TENANT.tenant), msgspec.json.encode(tenant))
        await asyncio.sleep(0.2)

    async def on_ended(self, ended: Ended, _: Delivery) -> None:
        if ended.model == self.model:
            self.ended.put_nowait(ended)

    async def on_fact(self, fact: Event, _: Delivery) -> None:
        if fact.pool.startswith(self.model):
            self.facts.append(fact)

    async def outcome(self) -> Ended:
        """The next outcome, and that nothing is left behind by it."""
        ended = await asyncio.wait_for(self.ended.get(), 5.0)
        await self.until_health(lambda health: health["in_flight"] == 0 and health["journal_backlog"] == 0)
        return ended

    async def health(self) -> dict[str, Any]:
        async with self.session.get("/health") as response:
            return await response.json()

    async def until_health(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        async with asyncio.timeout(5.0):
            while not holds(await self.health()):
                await asyncio.sleep(0.02)


def answer_from(submitted: Submitted, pool: str) -> dict[str, Any]:
    """The fields that every answer to a submission has."""
    return {
        "request_id": submitted.request_id,
        "attempt": submitted.attempt,
        "tenant": submitted.tenant,
        "pool": pool,
        "site": "local",
        "time_ns": time.time_ns(),
        "request_class": "interactive",
    }


def queue(submitted: Submitted, pool: str, valid_s: float = 5.0, timeout_s: float | None = None) -> Queued:
    return Queued(
        **answer_from(submitted, pool),
        event_id=event_id(submitted.request_id, submitted.attempt, "queued"),
        reason="waiting",
        position=2,
        expected_start_s=3.0,
        valid_s=valid_s,
        timeout_s=timeout_s,
    )


def admit(submitted: Submitted, pool: str, **more: Any) -> Admitted:
    return Admitted(
        **answer_from(submitted, pool),
        event_id=event_id(submitted.request_id, submitted.attempt, "admitted"),
        request=submitted.request,
        objective=OBJECTIVE,
        reason="fits",
        **more,
    )


def route(submitted: Submitted, pool: str, instance: str) -> Routed:
    return Routed(
        **answer_from(submitted, pool),
        event_id=event_id(submitted.request_id, submitted.attempt, "routed"),
        instance=instance,
        generation=1,
        input_tokens=submitted.request.input_tokens,
        reused_tokens=0,
        predicted_ttft_s=0.1,
        reason="first",
    )


def refuse(submitted: Submitted, pool: str) -> Refused:
    return Refused(
        **answer_from(submitted, pool),
        event_id=event_id(submitted.request_id, submitted.attempt, "refused"),
        status=429,
        reason="admission_slack",
        message="The pool cannot meet your objective now.",
        retry_after_s=3.0,
    )


def route_to_first(world: World) -> Decide:
    """Admit everything, and route it to the first instance that has not failed it."""

    def decide(submitted: Submitted) -> Sequence[Event]:
        candidates = [name for name in world.records if name not in submitted.request.excluded_instances]
        pool = world.records[candidates[0]].pool
        return admit(submitted, pool), route(submitted, pool, candidates[0])

    return decide


@contextlib.asynccontextmanager
async def world(
    bus_settings: Any, ingress_url: str, policy: Policy | None = None, model: str | None = None
) -> AsyncIterator[World]:
    """A world with no instances yet, in which deciders answer at once."""
    bus = await Bus.connect(bus_settings, "test")
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(ingress_url, headers=headers) as session:
        world = World(bus, session, model=model or f"m{secrets.token_hex(4)}")
        world.decide = route_to_first(world)
        tenants = await bus.bucket(subjects.BUCKET_TENANTS)
        await tenants.put(subjects.token(TENANT.tenant), msgspec.json.encode(TENANT))
        policies = await bus.bucket(subjects.BUCKET_POLICY)
        await policies.put(subjects.POLICY_KEY, msgspec.json.encode(policy or Policy()))
        await bus.subscribe(subjects.request_events("local", "submitted"), Submitted, world.on_submitted)
        for outcome in subjects.OUTCOMES:
            await bus.subscribe(subjects.request_events("local", outcome), Ended, world.on_ended)
        await bus.subscribe(subjects.request_events("local", "retried"), Retried, world.on_fact)
        await bus.subscribe(subjects.request_events("local", "first_token"), FirstToken, world.on_fact)
        bus.spawn(world.report_for_ever())
        try:
            yield world
        finally:
            instances = await bus.bucket(subjects.BUCKET_INSTANCES)
            names, world.records = list(world.records), {}
            for name in names:
                await instances.delete(subjects.instance_key("local", name))
            for engine in world.engines.values():
                if engine.runner is not None:
                    await engine.runner.cleanup()
            await bus.drain()
