"""CPU of a proxy for one streamed answer of 64 chunks, 32 answers at once."""

import asyncio
from collections.abc import Iterator

import pytest
import uvloop
from benchmarks.cpu import Serve, cpu_per_unit, metered, serving
from benchmarks.proxies import aiohttp_client, own_client
from benchmarks.streams import Client, Engine, Streams, ask_all

CONNECTIONS = 32
ANSWERS = 64
ROUNDS = 9


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


@pytest.mark.benchmark(group="http: a streamed answer, its 64 chunks one by one", timer=cpu_per_unit)
@pytest.mark.parametrize("proxy", [own_client, aiohttp_client])
def test_chunks_one_by_one(benchmark, runner: asyncio.Runner, proxy: Serve):
    relay(benchmark, runner, proxy, Streams(one_by_one=True))


@pytest.mark.benchmark(group="http: a streamed answer, its 64 chunks at once", timer=cpu_per_unit)
@pytest.mark.parametrize("proxy", [own_client, aiohttp_client])
def test_chunks_at_once(benchmark, runner: asyncio.Runner, proxy: Serve):
    relay(benchmark, runner, proxy, Streams(one_by_one=False))


def relay(benchmark, runner: asyncio.Runner, proxy: Serve, streams: Streams) -> None:
    engine_port = runner.run(listen(streams))
    with serving(proxy, f"http://127.0.0.1:{engine_port}") as server, metered(ANSWERS, server.cpu_s):
        clients = runner.run(connect(server.address, streams))
        benchmark.pedantic(lambda: runner.run(ask_all(clients, ANSWERS)), rounds=ROUNDS, warmup_rounds=1)
        for client in clients:
            client.transport.close()


async def listen(streams: Streams) -> int:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(streams), "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1]


async def connect(port: int, streams: Streams) -> list[Client]:
    loop = asyncio.get_running_loop()
    pairs = [
        await loop.create_connection(lambda number=number: Client(streams, number), "127.0.0.1", port)
        for number in range(CONNECTIONS)
    ]
    return [client for _, client in pairs]
