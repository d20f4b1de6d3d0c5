"""A flush is a promise about everything sent before it, whatever the client buffers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import nats
import pytest
from nats.aio.client import Client

from tokenfleet.bus.flush import flush


class RecordingServer:
    """Speaks as much of the NATS protocol as a client needs, and keeps the verbs that it was sent."""

    def __init__(self) -> None:
        self.verbs: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.11.0", "max_payload": 1 << 20, "headers": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            verb = line.split()[0].decode()
            self.verbs.append(verb)
            if verb == "PUB":
                await reader.readline()
            if verb == "PING":
                writer.write(b"PONG\r\n")
                await writer.drain()
        writer.close()


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[Client, RecordingServer]]:
    recording = RecordingServer()
    server = await asyncio.start_server(recording.serve, "127.0.0.1")
    client = await nats.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    recording.verbs.clear()
    yield client, recording
    await client.close()
    server.close()


async def nothing(_: object) -> None: ...


async def subscribe(client: Client) -> None:
    await client.subscribe("somewhere", cb=nothing)


async def publish(client: Client) -> None:
    await client.publish("somewhere", b"something")


@pytest.mark.parametrize(("send", "verb"), [(subscribe, "SUB"), (publish, "PUB")])
async def test_what_was_sent_is_taken_when_a_flush_returns(
    recorded: tuple[Client, RecordingServer], send: Callable[[Client], Awaitable[None]], verb: str
):
    client, server = recorded
    await send(client)
    await flush(client)
    assert verb in server.verbs[: len(server.verbs) - 1 - server.verbs[::-1].index("PING")], server.verbs
