"""A link between two sites, emulated: TCP relayed with a delay and a limited rate, that can be cut and joined.

Each direction of a link sends one chunk after another at the link's rate, whatever connections they belong to, and
delivers each half a round trip after it was sent. Cutting a link resets its connections; silencing one delivers
nothing and resets nothing, which is how a network usually fails.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Literal

from console.sites.options import LinkSpec

LinkState = Literal["joined", "cut", "silent"]

CHUNK_BYTES = 32 << 10
IN_FLIGHT_CHUNKS = 256
"""Of one direction of a connection, sent and not delivered: beyond it the sender waits, as for a window."""
LONGEST_HEAD_BYTES = 8 << 10

Dial = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[tuple[str, int] | None]]
"""Where a connection that came in is to go; None: nowhere."""


class Direction:
    """One direction of a link: what was sent before decides when the next chunk is delivered."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def delivery_s(self, size: int, now_s: float, spec: LinkSpec) -> float:
        """When a chunk of so many bytes that is sent now arrives at the other side."""
        begins_s = max(now_s, self._free_s)
        self._free_s = begins_s + (size / spec.bytes_per_s if spec.bytes_per_s else 0.0)
        return self._free_s + spec.round_trip_s / 2


class Link:
    """Between two sites, in whichever direction a connection is opened."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self.state: LinkState = "joined"
        self.bytes_relayed = 0
        self._there, self._back = Direction(), Direction()
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def set_state(self, state: LinkState) -> None:
        """Cut, silence or join the link."""
        self.state = state
        if state == "silent":
            self._open.clear()
        else:
            self._open.set()
        if state == "cut":
            for connection in self._connections:
                connection.cancel()

    async def listen(self, port: int, *, forward: bool, dial: Dial) -> asyncio.Server:
        """Take connections at a local port; `forward`: they come from the link's first site."""
        there, back = (self._there, self._back) if forward else (self._back, self._there)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.get_running_loop().create_task(
                self._serve(reader, writer, dial, there, back)
            )
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

        return await asyncio.start_server(accept, "127.0.0.1", port, limit=CHUNK_BYTES)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dial: Dial,
        there: Direction,
        back: Direction,
    ) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            if self.state == "cut":
                return
            target = await dial(reader, writer)
            await asyncio.sleep(self.spec.round_trip_s / 2)
            await self._open.wait()
            if target is None:
                return
            far_reader, far = await asyncio.open_connection(*target, limit=CHUNK_BYTES)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, far, there))
                pumps.create_task(self._pump(far_reader, writer, back))
        except* (OSError, asyncio.IncompleteReadError):
            pass  # an end of the connection is gone, and so is the connection
        finally:
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Deliver what is read, late; then the end of the stream."""
        on_their_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT_CHUNKS)
        delivering = asyncio.create_task(self._deliver(on_their_way, writer))
        try:
            chunk = b"-"
            while chunk:
                chunk = await reader.read(CHUNK_BYTES)
                now_s = asyncio.get_running_loop().time()
                await on_their_way.put((direction.delivery_s(len(chunk), now_s, self.spec), chunk))
            await delivering
        finally:
            delivering.cancel()

    async def _deliver(
        self, on_their_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due_s, chunk = await on_their_way.get()
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())
            await self._open.wait()
            if not chunk:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            writer.write(chunk)
            self.bytes_relayed += len(chunk)
            await writer.drain()


def dial_port(port: int) -> Dial:
    """Every connection goes to one local port."""

    async def dial(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> tuple[str, int]:
        return "127.0.0.1", port

    return dial


def dial_asked(link: Link) -> Dial:
    """Each connection goes where it asks to by HTTP CONNECT, if that is on this machine."""

    async def dial(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, *_ = head.decode("latin-1").split(" ")
        host, _, port = target.rpartition(":")
        # What a real connection over the link takes to be opened, which is a round trip before data can be sent.
        await asyncio.sleep(link.spec.round_trip_s)
        allowed = method == "CONNECT" and host in ("127.0.0.1", "localhost") and port.isdigit()
        writer.write(b"HTTP/1.1 200 open\r\n\r\n" if allowed else b"HTTP/1.1 403 refused\r\n\r\n")
        return ("127.0.0.1", int(port)) if allowed else None

    return dial
