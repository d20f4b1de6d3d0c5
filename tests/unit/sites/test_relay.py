"""An emulated link: what passes is late by the round trip, no faster than the rate, and stops when it is cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.preflight import free_port
from console.sites.options import LinkSpec
from console.sites.relay import Direction, Link, dial_asked, dial_port
from ingress.tunnel import open_tunnel

HOST = "127.0.0.1"


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """The port of a server that says back whatever it hears."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def connect(link: Link, target: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = free_port(HOST)
    await link.listen(port, forward=True, dial=dial_port(target))
    return await asyncio.open_connection(HOST, port)


async def round_trip_s(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> float:
    loop = asyncio.get_running_loop()
    sent_s = loop.time()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    return loop.time() - sent_s


async def test_what_passes_takes_the_round_trip(echo: int):
    reader, writer = await connect(Link(LinkSpec(0.1)), echo)
    await round_trip_s(reader, writer, b"opens the connection")
    assert 0.1 <= await round_trip_s(reader, writer, b"hello") < 0.3
    writer.close()


async def test_the_rate_is_shared_by_the_connections_of_a_direction(echo: int):
    link = Link(LinkSpec(0.0, bytes_per_s=1e6))
    both = await asyncio.gather(connect(link, echo), connect(link, echo))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await asyncio.gather(*(round_trip_s(reader, writer, b"x" * 100_000) for reader, writer in both))
    # 200 kB at 1 MB/s there; on their way back they follow closely.
    assert 0.2 <= loop.time() - began_s < 0.6
    for _, writer in both:
        writer.close()


async def test_a_cut_link_resets_its_connections_and_takes_no_more_until_it_is_joined(echo: int):
    link = Link(LinkSpec(0.01))
    port = free_port(HOST)
    await link.listen(port, forward=True, dial=dial_port(echo))
    reader, writer = await asyncio.open_connection(HOST, port)
    await round_trip_s(reader, writer, b"hello")
    link.set_state("cut")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    reader, writer = await asyncio.open_connection(HOST, port)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    link.set_state("joined")
    reader, writer = await asyncio.open_connection(HOST, port)
    await round_trip_s(reader, writer, b"hello")
    writer.close()


async def test_a_silent_link_delivers_nothing_and_resets_nothing(echo: int):
    link = Link(LinkSpec(0.01))
    reader, writer = await connect(link, echo)
    await round_trip_s(reader, writer, b"hello")
    link.set_state("silent")
    writer.write(b"lost?")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.readexactly(1)
    link.set_state("joined")
    assert await reader.readexactly(5) == b"lost?"
    writer.close()


class Heard(asyncio.Protocol):
    """Says hello over a tunnel and keeps the answer."""

    def __init__(self) -> None:
        self.data: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(b"hello")  # pyright: ignore

    def data_received(self, data: bytes) -> None:
        self.data.set_result(data)


async def test_an_engine_of_another_site_is_reached_through_the_links_proxy(echo: int):
    link = Link(LinkSpec(0.02))
    port = free_port(HOST)
    await link.listen(port, forward=False, dial=dial_asked(link))
    heard = await open_tunnel(f"http://{HOST}:{port}", HOST, echo, Heard, None)
    assert await heard.data == b"hello"
    heard.transport.close()


async def test_the_proxy_opens_nothing_beyond_this_machine():
    link = Link(LinkSpec(0.0))
    port = free_port(HOST)
    await link.listen(port, forward=True, dial=dial_asked(link))
    with pytest.raises(ConnectionRefusedError, match="403"):
        await open_tunnel(f"http://{HOST}:{port}", "10.0.0.1", 80, Heard, None)


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1)), min_size=1), st.floats(100, 1e6))
def test_chunks_of_a_direction_arrive_in_order_and_never_faster_than_the_rate(
    chunks: list[tuple[int, float]], rate: float
):
    direction, spec = Direction(), LinkSpec(0.05, rate)
    now_s, before_s, sent = 0.0, 0.0, 0
    for size, pause_s in chunks:
        now_s += pause_s
        sent += size
        arrives_s = direction.delivery_s(size, now_s, spec)
        assert arrives_s >= before_s
        assert arrives_s >= now_s + size / rate + 0.025 - 1e-9
        assert arrives_s >= sent / rate - 1e-6
        before_s = arrives_s
