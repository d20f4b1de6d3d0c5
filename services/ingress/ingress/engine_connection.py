"""One HTTP/1.1 connection to an engine: one exchange at a time, read in whatever pieces arrive."""

import asyncio
from dataclasses import dataclass
from typing import cast

import httptools

from tokenfleet.errors import UnavailableError

HIGH_WATER_BYTES = 256 << 10
"""Buffered for a slow client before the engine is made to wait."""


class EngineError(UnavailableError):
    """An engine could not be reached, broke off or fell silent."""

    def __init__(self, reason: str, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reason = reason
        self.reached = reached
        """False when it cannot have seen the request."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In wall seconds."""

    connect_s: float
    first_byte_s: float
    """Until the body of the answer begins."""
    idle_s: float
    """Between parts of the body."""


class EngineConnection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, name: str, timeouts: Timeouts, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._timeouts = timeouts
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: EngineError | None = None
        self.idle_in: list[EngineConnection] | None = None
        """The pool that keeps it while it is idle."""
        self._start()

    def _start(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._paused = False
        self._body_begun = False
        self._head_done = False
        self._complete = False
        self._keep_alive = False
        self.received_any = False
        self.status = 0
        self.headers: dict[str, str] = {}

    # -- what the client of this module does

    @property
    def usable(self) -> bool:
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        """Whether the exchange is over and the engine keeps the connection open."""
        return self.usable and self._complete and self._keep_alive

    def send(self, head: bytes, body: bytes) -> None:
        self._start()
        assert self._transport is not None
        self._transport.writelines([head, body])
        self._heard_s = self._loop.time()
        self._watch()

    async def read_head(self) -> None:
        while not self._head_done:
            await self._wait()

    async def read(self) -> bytes:
        """All of the body that is here, waiting for some; empty at its end."""
        while not self._chunks:
            if self._complete:
                self._stop_watching()
                return b""
            await self._wait()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered_bytes = 0
        if self._paused:
            self._paused = False
            self._heard_s = self._loop.time()
            if self.usable and self._transport is not None:
                self._transport.resume_reading()
        return data

    def abort(self) -> None:
        self._stop_watching()
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, reason: str, message: str) -> None:
        if self._error is None:
            self._error = EngineError(reason, f"engine {self._name} {message}")
        self._stop_watching()
        self._wake()

    # -- silence

    def _watch(self) -> None:
        """One timer per exchange, re-armed lazily: far cheaper than a timeout around each read."""
        if self._paused:
            self._heard_s = self._loop.time()
        limit_s = self._timeouts.idle_s if self._body_begun else self._timeouts.first_byte_s
        left_s = self._heard_s + limit_s - self._loop.time()
        if left_s <= 0:
            self._fail("engine_silent", f"said nothing for {limit_s:g} s")
            self.abort()
            return
        self._watchdog = self._loop.call_later(left_s, self._watch)

    def _stop_watching(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports are none of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received_any = True
        self._heard_s = self._loop.time()
        if self._complete:
            self._fail("engine_protocol", "sent data that nobody asked for")
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("engine_protocol", f"does not speak HTTP: {error}")
            self.abort()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.idle_in is not None:
            self.idle_in.remove(self)
            self.idle_in = None
        if self._head_done and not self._complete and self._until_close:
            self._complete = True
        if not self._complete:
            self._fail("engine_connection_lost", f"closed the connection ({exc or 'end of stream'})")
        self._wake()

    @property
    def _until_close(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    # -- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._head_done = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered_bytes += len(body)
        if not self._body_begun:
            self._body_begun = True
            self._stop_watching()
            self._watch()
        if self._buffered_bytes > HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._head_done:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()
        else:  # An interim 1xx answer.
            self.headers.clear()
