"""A connection to an engine through an HTTP proxy (CONNECT): how another site's engines are reached."""

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeVar, cast
from urllib.parse import urlsplit

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)

LONGEST_HEAD_BYTES = 8 << 10


class _Handshake(asyncio.Protocol):
    """Asks for the tunnel and waits for the proxy's answer; nothing else may come before the engine is asked."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._head = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        ask = f"CONNECT {self._target} HTTP/1.1\r\nhost: {self._target}\r\n\r\n"
        cast("asyncio.Transport", transport).write(ask.encode("latin-1"))

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self.opened.done():
            return
        if b"\r\n\r\n" in self._head:
            status = self._head.split(b"\r\n", 1)[0].decode("latin-1")
            if status.split(" ")[1:2] == ["200"]:
                self.opened.set_result(None)
            else:
                self.opened.set_exception(ConnectionRefusedError(f"the proxy answers {status!r}"))
        elif len(self._head) > LONGEST_HEAD_BYTES:
            self.opened.set_exception(ConnectionRefusedError("the proxy does not speak HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionResetError(f"the proxy closed the connection: {exc}"))


async def open_tunnel(
    proxy: str, host: str, port: int, protocol: Callable[[], ProtocolT], tls: ssl.SSLContext | None
) -> ProtocolT:
    """A connection to `host:port` through the proxy at a URL, given to what `protocol` makes.

    Raises:
        OSError: the proxy cannot be reached, or does not open the tunnel.
    """
    loop = asyncio.get_running_loop()
    at = urlsplit(proxy)
    transport, handshake = await loop.create_connection(
        lambda: _Handshake(f"{host}:{port}"), at.hostname or "", at.port or 80
    )
    try:
        await handshake.opened
        connection = protocol()
        if tls is not None:
            await loop.start_tls(transport, connection, tls, server_hostname=host)
        else:
            transport.set_protocol(connection)
            connection.connection_made(transport)
    except BaseException:
        transport.abort()
        raise
    return connection
