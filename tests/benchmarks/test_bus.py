"""The bus against FastStream and against nats-py's own JetStream calls, per message, on a real server."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec
import nats
import pytest
import uvloop
from benchmarks.cpu import Serve, cpu_per_unit, metered, serving
from benchmarks.responders import (
    ASK,
    SUBJECT,
    Answer,
    faststream_msgspec,
    faststream_pydantic,
    tokenfleet_bus,
)
from nats.aio.client import Client

from tokenfleet import subjects
from tokenfleet.bus import Bus, Fetched
from tokenfleet.bus.connection import MESSAGE_ID
from tokenfleet.bus.consumer import PullConsumer
from tokenfleet.bus.publisher import PublishWindow

MESSAGES = 1_000
CONCURRENCY = 64
ROUNDS = 9
EVENT = msgspec.json.encode(ASK)
STORED = subjects.request("bench", "pool", "completed")

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner.run


@pytest.fixture
def client(run: Run, nats_server) -> Iterator[Client]:
    """A bare connection; the streams exist."""

    async def connect() -> Client:
        bus = await Bus.connect(nats_server.settings("operator"), "bench")
        await bus.drain()
        user, password = "operator", nats_server.passwords["operator"]
        return await nats.connect(
            nats_server.url, user=user, password=password, inbox_prefix=f"_INBOX_{user}"
        )

    connection: Client = run(connect())
    yield connection
    run(connection.close())


async def concurrently(one: Callable[[int], Coroutine[Any, Any, Any]]) -> None:
    """Do something `MESSAGES` times, `CONCURRENCY` at once."""
    numbers = iter(range(MESSAGES))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))


@pytest.mark.benchmark(group="bus: answering a request (CPU of the responder)", timer=cpu_per_unit)
@pytest.mark.parametrize("responder", [tokenfleet_bus, faststream_msgspec, faststream_pydantic])
def test_request_and_reply(benchmark, run: Run, client: Client, nats_server, responder: Serve):
    async def ask(_: int) -> None:
        reply = await client.request(SUBJECT, EVENT, timeout=30.0)
        assert msgspec.json.decode(reply.data, type=Answer).request_id == ASK.request_id

    with (
        serving(responder, nats_server.settings("operator")) as server,
        metered(MESSAGES, server.cpu_s),
    ):
        benchmark.pedantic(lambda: run(concurrently(ask)), rounds=ROUNDS, warmup_rounds=1)


@pytest.mark.benchmark(group="bus: acknowledged publish, 64 under way", timer=cpu_per_unit)
@pytest.mark.parametrize("way", ["publish_window", "js_publish"])
def test_acknowledged_publish(benchmark, run: Run, client: Client, way: str):
    ids = (f"{way}-{number}" for number in itertools.count())
    window, js = PublishWindow(client), client.jetstream()
    run(window.start())

    async def through_window(_: int) -> None:
        assert not await window.publish(STORED, EVENT, {MESSAGE_ID: next(ids)}, timeout_s=30.0)

    async def through_js(_: int) -> None:
        ack = await js.publish(STORED, EVENT, timeout=30.0, headers={MESSAGE_ID: next(ids)})
        assert not ack.duplicate

    publish = through_window if way == "publish_window" else through_js
    with metered(MESSAGES):
        benchmark.pedantic(lambda: run(concurrently(publish)), rounds=ROUNDS, warmup_rounds=1)


@pytest.mark.benchmark(group="bus: pull and acknowledge", timer=cpu_per_unit)
@pytest.mark.parametrize("way", ["pull_consumer", "fetch_100"])
def test_pull(benchmark, run: Run, client: Client, way: str):
    subject = subjects.request(f"bench-{way}", "pool", "completed")
    durables = (f"{way}-{number}" for number in itertools.count())
    run(store(client, subject))
    pull = pipelined if way == "pull_consumer" else fetched

    with metered(MESSAGES):
        benchmark.pedantic(lambda: run(pull(client, subject, next(durables))), rounds=ROUNDS, warmup_rounds=1)


async def store(client: Client, subject: str) -> None:
    window = PublishWindow(client)
    await window.start()
    await concurrently(
        lambda number: window.publish(subject, EVENT, {MESSAGE_ID: f"{subject}-{number}"}, 30.0)
    )


async def pipelined(client: Client, subject: str, durable: str) -> None:
    got, complete = 0, asyncio.Event()

    async def handler(batch: Sequence[Fetched]) -> None:
        nonlocal got
        got += len(batch)
        if got == MESSAGES:
            complete.set()

    consumer = PullConsumer(client, subjects.STREAM_REQUESTS, durable, [subject])
    async with background(consumer.run(handler)):
        await complete.wait()
        await acknowledged(client, durable)


async def fetched(client: Client, subject: str, durable: str) -> None:
    subscription = await client.jetstream().pull_subscribe(subject, durable, stream=subjects.STREAM_REQUESTS)
    got = 0
    while got < MESSAGES:
        for message in await subscription.fetch(100, timeout=30.0):
            await message.ack()
            got += 1
    await acknowledged(client, durable)
    await subscription.unsubscribe()


async def acknowledged(client: Client, durable: str) -> None:
    """Return when the server has every acknowledgement."""
    js = client.jetstream()
    while (await js.consumer_info(subjects.STREAM_REQUESTS, durable)).num_ack_pending:
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def background(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
