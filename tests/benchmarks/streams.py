"""Streamed answers through a proxy, chunk by chunk or all at once: the engine and the clients of the test.

Engine and clients share this process, and the engine sends a chunk only when the client has the one before:
every chunk crosses the proxy on its own, as fast as the proxy can, without timers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

CHUNKS = 64
TOKEN = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764590400,"model":"llama-70b",'
EVENT = TOKEN + b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST_CHUNK = b"0\r\n\r\n"
PROMPT = b'{"model":"llama-70b","stream":true,"messages":[{"role":"user","content":"%b"}],"seed":%d}'


@dataclass(slots=True)
class Streams:
    """Answers under way, by the number that the client put into its request."""

    one_by_one: bool
    _next: dict[int, Callable[[], None]] = field(default_factory=dict)

    def asked(self, number: int, send: Callable[[bytes], None]) -> None:
        """The request reached the engine."""
        if not self.one_by_one:
            send(HEAD + CHUNK * CHUNKS + LAST_CHUNK)
            return
        chunks = iter([HEAD + CHUNK, *[CHUNK] * (CHUNKS - 2), CHUNK + LAST_CHUNK])

        def send_next() -> None:
            if (chunk := next(chunks, None)) is not None:
                send(chunk)

        self._next[number] = send_next
        send_next()

    def received(self, number: int) -> None:
        """The client has everything sent so far."""
        if self.one_by_one:
            self._next[number]()


class Engine(asyncio.Protocol):
    """Answers every POST with a stream; kept-alive connections, no pipelining."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._send = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        self._request += data
        if self._request.endswith(b"}"):
            number = int(self._request.rpartition(b":")[2][:-1])
            self._request = b""
            self._streams.asked(number, self._send)


class Client(asyncio.Protocol):
    """One kept-alive connection to the proxy."""

    def __init__(self, streams: Streams, number: int) -> None:
        self._streams = streams
        self._number = number
        body = PROMPT % (b"tell me " * 50, number)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ncontent-type: application/json\r\n"
        self._request = head + b"content-length: %d\r\n\r\n" % len(body) + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def ask(self) -> None:
        """Send one request; returns when its whole stream has come."""
        self._answer = b""
        self._events = 0
        self._complete = asyncio.get_running_loop().create_future()
        self.transport.write(self._request)
        await self._complete

    def data_received(self, data: bytes) -> None:
        self._answer += data
        events = self._answer.count(b"\n\n")
        if events == CHUNKS and self._answer.endswith(LAST_CHUNK):
            good = self._answer.startswith(b"HTTP/1.1 200") and self._answer.count(EVENT) == CHUNKS
            self._complete.set_result(None)
            assert good, "the stream was not relayed byte for byte"
        elif events > self._events:
            self._events = events
            self._streams.received(self._number)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._complete.done():
            self._complete.set_exception(ConnectionError(f"the proxy closed the connection: {exc}"))


async def ask_all(clients: list[Client], answers: int) -> None:
    """Let the clients ask for so many answers in all, each one at a time."""
    numbers = iter(range(answers))

    async def keep_asking(client: Client) -> None:
        for _ in numbers:
            await client.ask()

    async with asyncio.timeout(60.0):
        await asyncio.gather(*(keep_asking(client) for client in clients))
