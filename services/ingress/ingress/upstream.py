"""The HTTP client that engines are called with: pooled connections, one relay loop's worth of work per chunk.

Chosen by measurement over aiohttp's client, which costs a third more CPU per streamed answer (docs/adr/0002). It speaks only what engines need: POST with a body, answered by a length,
by chunks or until the connection ends. Closing an answer closes its connection, which cancels the request
in the engine.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ingress.engine_connection import EngineConnection, EngineError, Timeouts
from ingress.tunnel import open_tunnel

STALE_WITHIN_S = 0.25
"""An engine that closed a kept connection while it was idle is found out within a round trip. One lost later was lost
with the request, which the engine may have worked on: whoever called decides whether to send it again, and where."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: bool
    proxy: str | None = None


class EngineAnswer:
    """One engine's answer, its head received. Read it to the end or close it."""

    def __init__(self, connection: EngineConnection, pool: "list[EngineConnection]") -> None:
        self._connection: EngineConnection | None = connection
        self._pool = pool
        self.status = connection.status
        self.headers = connection.headers

    async def read(self) -> bytes:
        """All that has arrived of the body, joined; waits for some; empty at the end.

        Raises:
            EngineError: the engine broke off, or fell silent for too long.
        """
        if self._connection is None:
            return b""
        data = await self._connection.read()
        if not data:
            connection, self._connection = self._connection, None
            if connection.reusable:
                connection.idle_in = self._pool
                self._pool.append(connection)
            else:
                connection.abort()
        return data

    async def read_all(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises:
            EngineError: as `read`, or the body is longer than the limit.
        """
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit_bytes:
                self.close()
                raise EngineError("engine_answer_too_long", f"an answer exceeds {limit_bytes} bytes")
        return b"".join(parts)

    def close(self) -> None:
        """Give up the answer if it is not complete: the engine sees the connection close and cancels."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()


@dataclass(slots=True)
class EngineClient:
    """Calls engines over kept-alive connections, most recently used first."""

    timeouts: Timeouts
    _idle: dict[Address, list[EngineConnection]] = field(default_factory=dict)
    _tls: ssl.SSLContext | None = None

    async def post(
        self, url: str, path: str, headers: Mapping[str, str], body: bytes, *, proxy: str | None = None
    ) -> EngineAnswer:
        """Send a request, through an HTTP proxy if one is named; returns when the head of the answer is there.

        A kept connection that turns out at once to have been closed by the engine, before any byte of an answer,
        is replaced by a fresh one.

        Raises:
            EngineError: no connection, no answer in time, or not HTTP.
        """
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        address = Address(parts.hostname or "", parts.port or (443 if tls else 80), tls, proxy)
        head = _head(parts.path.rstrip("/") + path, parts.netloc, headers, len(body))
        pool = self._idle.setdefault(address, [])
        kept = _take(pool)
        if kept is not None:
            loop = asyncio.get_running_loop()
            sent_s = loop.time()
            try:
                return await self._exchange(kept, pool, head, body)
            except EngineError as error:
                stale = error.reason == "engine_connection_lost" and loop.time() - sent_s < STALE_WITHIN_S
                if kept.received_any or not stale:
                    raise
        return await self._exchange(await self._connect(address), pool, head, body)

    async def close(self) -> None:
        """Close the idle connections."""
        for pool in self._idle.values():
            while connection := _take(pool):
                connection.abort()
        await asyncio.sleep(0)

    async def _exchange(
        self, connection: EngineConnection, pool: "list[EngineConnection]", head: bytes, body: bytes
    ) -> EngineAnswer:
        try:
            connection.send(head, body)
            await connection.read_head()
        except BaseException:
            connection.abort()
            raise
        return EngineAnswer(connection, pool)

    async def _connect(self, address: Address) -> EngineConnection:
        loop = asyncio.get_running_loop()
        name = f"{address.host}:{address.port}"
        options: dict[str, Any] = {}
        if address.tls:
            self._tls = self._tls or ssl.create_default_context()
            options["ssl"] = self._tls

        def protocol() -> EngineConnection:
            return EngineConnection(name, self.timeouts, loop)

        try:
            async with asyncio.timeout(self.timeouts.connect_s):
                if address.proxy is not None:
                    tls = options.get("ssl")
                    return await open_tunnel(address.proxy, address.host, address.port, protocol, tls)
                _, connection = await loop.create_connection(protocol, address.host, address.port, **options)
        except (OSError, TimeoutError) as error:
            message = f"engine {name} cannot be reached: {error or 'no answer in time'}"
            raise EngineError("engine_unreachable", message, reached=False) from error
        return connection


def _take(pool: list[EngineConnection]) -> EngineConnection | None:
    while pool:
        connection = pool.pop()
        connection.idle_in = None
        if connection.usable:
            return connection
    return None


def _head(path: str, host: str, headers: Mapping[str, str], length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
