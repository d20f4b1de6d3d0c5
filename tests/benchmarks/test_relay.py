"""CPU that relaying one streamed chunk costs: our engine client against aiohttp's, in one run.

Engine and clients are other processes; what is measured is the CPU time of the relaying process, with the same
server (aiohttp), loop (uvloop) and event handling on both sides. Streams are paced, so chunks are not joined.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web
from pytest_benchmark.fixture import BenchmarkFixture

from ingress.engine_connection import Timeouts
from ingress.sse import EventRelay
from ingress.upstream import EngineClient

STREAMS, CHUNKS, GAP_S = 40, 100, 0.01

_ENGINE = f"""
import asyncio
EVENT = b'data: {{"choices":[{{"index":0,"delta":{{"content":"word "}},"finish_reason":null}}]}}\\n\\n'
CHUNK = b'%x\\r\\n%s\\r\\n' % (len(EVENT), EVENT)
HEAD = b'HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n'
async def serve(reader, writer):
    with __import__('contextlib').suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            await reader.readuntil(b'\\r\\n\\r\\n')
            await reader.readexactly(2)
            writer.write(HEAD)
            for _ in range({CHUNKS}):
                writer.write(CHUNK)
                await asyncio.sleep({GAP_S})
            writer.write(b'0\\r\\n\\r\\n')
async def main():
    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

_CLIENTS = f"""
import asyncio, sys
async def stream():
    reader, writer = await asyncio.open_connection('127.0.0.1', int(sys.argv[1]))
    writer.write(b'POST / HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\ncontent-length: 2\\r\\n\\r\\n{{}}')
    body = await reader.read(-1)
    assert body.count(b'data: ') == {CHUNKS}, body[-200:]
    writer.close()
async def main():
    await asyncio.gather(*(stream() for _ in range({STREAMS})))
asyncio.run(main())
"""

Chunks = Callable[[str], contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]]


@contextlib.asynccontextmanager
async def own_client() -> AsyncIterator[Chunks]:
    client = EngineClient(Timeouts(connect_s=2.0, first_byte_s=60.0, idle_s=60.0))

    @contextlib.asynccontextmanager
    async def chunks(url: str) -> AsyncIterator[AsyncIterator[bytes]]:
        answer = await client.post(url, "/", {"content-type": "application/json"}, b"{}")

        async def read() -> AsyncIterator[bytes]:
            while data := await answer.read():
                yield data

        yield read()

    yield chunks
    await client.close()


@contextlib.asynccontextmanager
async def aiohttp_client() -> AsyncIterator[Chunks]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        @contextlib.asynccontextmanager
        async def chunks(url: str) -> AsyncIterator[AsyncIterator[bytes]]:
            async with session.post(url, data=b"{}") as response:
                yield response.content.iter_any()

        yield chunks


CLIENTS: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Chunks]]] = {
    "own": own_client,
    "aiohttp": aiohttp_client,
}


async def relay_cpu_us_per_chunk(client: str) -> float:
    """CPU microseconds per relayed chunk, one request in a hundred chunks included."""
    engine = await asyncio.create_subprocess_exec(sys.executable, "-c", _ENGINE, stdout=subprocess.PIPE)
    assert engine.stdout is not None
    url = f"http://127.0.0.1:{int(await engine.stdout.readline())}"
    try:
        return await _measure(client, url)
    finally:
        engine.terminate()
        await engine.wait()


async def _measure(client: str, url: str) -> float:
    async with CLIENTS[client]() as chunks:

        async def handle(request: web.Request) -> web.StreamResponse:
            await request.read()
            relay = EventRelay(strip_usage=True)
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            async with chunks(url) as stream:
                await response.prepare(request)
                async for chunk in stream:
                    await response.write(relay.feed(chunk))
            return response

        app = web.Application()
        app.router.add_post("/", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = str(runner.addresses[0][1])
        before_s = time.process_time()
        clients = await asyncio.create_subprocess_exec(sys.executable, "-c", _CLIENTS, port)
        await clients.wait()
        used_s = time.process_time() - before_s
        await runner.cleanup()
    assert clients.returncode == 0
    return used_s / (STREAMS * CHUNKS) * 1e6


@pytest.mark.parametrize("client", CLIENTS)
def test_relay(benchmark: BenchmarkFixture, client: str) -> None:
    figures: list[float] = []

    def run() -> Any:
        figures.append(uvloop.run(relay_cpu_us_per_chunk(client)))

    benchmark.group = "relay"
    benchmark.pedantic(run, rounds=3)
    benchmark.extra_info["cpu_us_per_chunk"] = sorted(figures)[1]
    print(f"\n{client}: {sorted(figures)[1]:.0f} us of CPU per relayed chunk")
