"""Minimal pass-through proxies, each in a process of its own: a server and a client library at a time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from ingress.engine_connection import Timeouts
from ingress.upstream import EngineClient

PATH = "/v1/chat/completions"
HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}
TIMEOUTS = Timeouts(connect_s=5.0, first_byte_s=60.0, idle_s=60.0)


@asynccontextmanager
async def own_client(engine_url: str) -> AsyncIterator[int]:
    """aiohttp.web with the client that ingress has."""
    client = EngineClient(TIMEOUTS)

    async def relay(request: web.Request) -> web.StreamResponse:
        answer = await client.post(engine_url, PATH, HEADERS, await request.read())
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        while data := await answer.read():
            await response.write(data)
        await response.write_eof()
        return response

    async with listening(relay) as port:
        yield port
    await client.close()


@asynccontextmanager
async def aiohttp_client(engine_url: str) -> AsyncIterator[int]:
    """aiohttp.web with aiohttp's own client, relaying whatever has arrived."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            async with session.post(engine_url + PATH, data=body, headers=HEADERS) as answer:
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                async for data in answer.content.iter_any():
                    await response.write(data)
                await response.write_eof()
                return response

        async with listening(relay) as port:
            yield port


@asynccontextmanager
async def listening(relay: Handler) -> AsyncIterator[int]:
    """An aiohttp server, set up as in ingress; yields its port."""
    app = web.Application()
    app.router.add_post(PATH, relay)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()
