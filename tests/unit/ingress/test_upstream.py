"""The engine client against engines that behave, misbehave and vanish."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ingress.engine_connection import HIGH_WATER_BYTES, EngineError, Timeouts
from ingress.upstream import STALE_WITHIN_S, EngineClient

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Engine:
    """A TCP server that answers each connection with one handler after another."""

    def __init__(self) -> None:
        self.connections = 0
        self.handlers: list[Handle] = []
        self.requests: list[bytes] = []
        self.closed = asyncio.Event()
        """Set when a client closes a connection while an answer is under way."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self.handlers.pop(0)(reader, writer)
                await writer.drain()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(data: bytes, *, then_close: bool = False) -> Handle:
    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_close:
            writer.close()

    return handle


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, str]]:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    yield engine, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = EngineClient(Timeouts(connect_s=1.0, first_byte_s=0.3, idle_s=0.2))
    yield client
    await client.close()


async def ask(client: EngineClient, url: str, body: bytes = b"{}") -> bytes:
    return await (await client.post(url, "/v1/completions", {"x-a": "b"}, body)).read_all(1 << 20)


async def test_a_connection_is_kept_and_used_again(engine: tuple[Engine, str], client: EngineClient) -> None:
    served, url = engine
    served.handlers = [answer(OK), answer(OK)]
    assert await ask(client, url, b'{"a": 1}') == b"ok"
    assert await ask(client, url) == b"ok"
    assert served.connections == 1
    assert served.requests[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"\r\nx-a: b\r\n" in served.requests[0]
    assert served.requests[0].endswith(b'\r\n\r\n{"a": 1}')


async def test_a_chunked_body_arrives_decoded(engine: tuple[Engine, str], client: EngineClient) -> None:
    served, url = engine
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    served.handlers = [answer(chunked), answer(OK)]
    assert await ask(client, url) == b"abcdefg"
    assert await ask(client, url) == b"ok"
    assert served.connections == 1


async def test_a_body_without_length_ends_with_its_connection(
    engine: tuple[Engine, str], client: EngineClient
) -> None:
    served, url = engine
    served.handlers = [answer(b"HTTP/1.1 200 OK\r\n\r\nall of it", then_close=True), answer(OK)]
    assert await ask(client, url) == b"all of it"
    assert await ask(client, url) == b"ok"
    assert served.connections == 2


async def test_an_interim_answer_is_passed_over(engine: tuple[Engine, str], client: EngineClient) -> None:
    served, url = engine
    served.handlers = [answer(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)]
    assert await ask(client, url) == b"ok"


async def test_a_kept_connection_that_the_engine_closed_is_replaced(
    engine: tuple[Engine, str], client: EngineClient
) -> None:
    served, url = engine
    served.handlers = [answer(OK), answer(b"", then_close=True), answer(OK)]
    assert await ask(client, url) == b"ok"
    assert await ask(client, url) == b"ok", "the second exchange lost its connection before any byte"
    assert served.connections == 2


async def test_a_kept_connection_that_is_lost_while_the_engine_works_is_a_failure_and_nothing_is_sent_twice(
    engine: tuple[Engine, str],
) -> None:
    served, url = engine
    client = EngineClient(Timeouts(connect_s=1.0, first_byte_s=5.0, idle_s=5.0))

    async def die_at_work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(STALE_WITHIN_S + 0.05)
        writer.close()

    served.handlers = [answer(OK), die_at_work, answer(OK)]
    await ask(client, url)
    with pytest.raises(EngineError) as caught:
        await ask(client, url)
    assert caught.value.reason == "engine_connection_lost"
    assert caught.value.reached
    assert len(served.requests) == 2


async def test_a_fresh_connection_that_closes_is_a_failure(
    engine: tuple[Engine, str], client: EngineClient
) -> None:
    served, url = engine
    served.handlers = [answer(b"", then_close=True), answer(OK)]
    with pytest.raises(EngineError) as caught:
        await ask(client, url)
    assert caught.value.reason == "engine_connection_lost"
    assert caught.value.reached
    assert served.connections == 1


async def test_a_request_is_not_repeated_once_an_answer_has_begun(
    engine: tuple[Engine, str], client: EngineClient
) -> None:
    served, url = engine
    served.handlers = [answer(OK), answer(b"HTTP/1.1 200", then_close=True), answer(OK)]
    await ask(client, url)
    with pytest.raises(EngineError) as caught:
        await ask(client, url)
    assert caught.value.reason == "engine_connection_lost"
    assert served.connections == 1


async def test_a_body_cut_short_is_a_failure(engine: tuple[Engine, str], client: EngineClient) -> None:
    served, url = engine
    served.handlers = [answer(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", then_close=True)]
    reply = await client.post(url, "/", {}, b"")
    assert await reply.read() == b"half"
    with pytest.raises(EngineError) as caught:
        await reply.read()
    assert caught.value.reason == "engine_connection_lost"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
    ],
)
async def test_silence_is_a_failure(engine: tuple[Engine, str], client: EngineClient, sent: bytes) -> None:
    served, url = engine

    async def say_and_hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await asyncio.sleep(5)

    served.handlers = [say_and_hang]
    with pytest.raises(EngineError) as caught:
        await ask(client, url)
    assert caught.value.reason == "engine_silent"


async def test_what_is_not_http_is_a_failure(engine: tuple[Engine, str], client: EngineClient) -> None:
    served, url = engine
    served.handlers = [answer(b"SSH-2.0-OpenSSH\r\n")]
    with pytest.raises(EngineError) as caught:
        await ask(client, url)
    assert caught.value.reason == "engine_protocol"


async def test_an_engine_that_is_not_there_was_not_reached(client: EngineClient) -> None:
    with pytest.raises(EngineError) as caught:
        await ask(client, "http://127.0.0.1:1")
    assert caught.value.reason == "engine_unreachable"
    assert not caught.value.reached


async def test_closing_an_answer_closes_the_connection(
    engine: tuple[Engine, str], client: EngineClient
) -> None:
    served, url = engine

    async def wait_for_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        served.closed.set()

    served.handlers = [wait_for_close]
    reply = await client.post(url, "/", {}, b"")
    await reply.read()
    reply.close()
    await asyncio.wait_for(served.closed.wait(), 1.0)


async def test_a_cancelled_call_closes_the_connection(
    engine: tuple[Engine, str], client: EngineClient
) -> None:
    served, url = engine
    asked = asyncio.Event()

    async def wait_for_close(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        asked.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        served.closed.set()

    served.handlers = [wait_for_close]
    call = asyncio.create_task(ask(client, url))
    await asked.wait()
    call.cancel()
    await asyncio.wait_for(served.closed.wait(), 1.0)


async def test_an_answer_longer_than_allowed_is_given_up(
    engine: tuple[Engine, str], client: EngineClient
) -> None:
    served, url = engine
    served.handlers = [answer(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n" + b"x" * 9000)]
    reply = await client.post(url, "/", {}, b"")
    with pytest.raises(EngineError) as caught:
        await reply.read_all(8000)
    assert caught.value.reason == "engine_answer_too_long"


async def test_an_engine_waits_for_a_slow_client_instead_of_filling_the_memory(
    engine: tuple[Engine, str], client: EngineClient
) -> None:
    served, url = engine
    size = 64 << 20
    served.handlers = [answer(f"HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n".encode() + b"x" * size)]
    reply = await client.post(url, "/", {}, b"")
    await asyncio.sleep(0.5)  # longer than the idle timeout: waiting for the client is not silence
    first = await reply.read()
    assert len(first) < 2 * HIGH_WATER_BYTES
    total = len(first)
    while part := await reply.read():
        total += len(part)
    assert total == size
