"""KV events on the wire, byte for byte as a vLLM subscriber reads them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from node_agent.emulated.kv_events import KvEventPublisher
from tokenfleet.engine.kv_cache import Cleared, Removed, Stored
from tokenfleet.errors import ConfigurationError


@pytest.fixture
async def publisher() -> AsyncIterator[KvEventPublisher]:
    publisher = KvEventPublisher("127.0.0.1", 0, 0, block_size=2)
    publisher.start()
    yield publisher
    publisher.stop()


@pytest.fixture
def client() -> Any:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


def token_ids(_request_id: str, first_block: int, blocks: int) -> list[int]:
    return list(range(first_block * 2, (first_block + blocks) * 2))


async def replay(context: zmq.asyncio.Context, port: int, start: int) -> list[tuple[int, bytes]]:
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    await socket.send_multipart([b"", start.to_bytes(8, "big")])
    answers: list[tuple[int, bytes]] = []
    while not answers or answers[-1][0] != -1:
        empty, sequence, payload = await asyncio.wait_for(socket.recv_multipart(), 5)
        assert empty == b""
        answers.append((int.from_bytes(sequence, "big", signed=True), payload))
    return answers


async def test_a_batch_is_topic_sequence_and_tagged_arrays(
    publisher: KvEventPublisher, client: zmq.asyncio.Context
):
    subscriber = client.socket(zmq.SUB)
    subscriber.connect(f"tcp://127.0.0.1:{publisher.port}")
    subscriber.subscribe(b"")
    await asyncio.sleep(0.1)
    publisher.publish([Stored("a", 1, 2**64 - 1, (7, 8)), Removed((8, 7)), Cleared()], token_ids)
    publisher.publish([Stored("a", 0, None, (9,))], token_ids)
    topic, sequence, payload = await asyncio.wait_for(subscriber.recv_multipart(), 5)
    _, events, rank = msgspec.msgpack.decode(payload)
    assert (topic, sequence, rank) == (b"", bytes(8), 0)
    assert events == [
        ["BlockStored", [7, 8], 2**64 - 1, [2, 3, 4, 5], 2, None, "GPU"],
        ["BlockRemoved", [8, 7], "GPU"],
        ["AllBlocksCleared"],
    ]
    _, sequence, payload = await asyncio.wait_for(subscriber.recv_multipart(), 5)
    assert sequence == (1).to_bytes(8, "big")
    assert msgspec.msgpack.decode(payload)[1] == [["BlockStored", [9], None, [0, 1], 2, None, "GPU"]]


async def test_a_replay_begins_where_asked_and_ends_with_minus_one(
    publisher: KvEventPublisher, client: zmq.asyncio.Context
):
    for _ in range(5):
        publisher.publish([Cleared()], token_ids)
    answers = await replay(client, publisher.replay_port, 3)
    assert [sequence for sequence, _ in answers] == [3, 4, -1]
    assert answers[-1][1] == b""
    assert msgspec.msgpack.decode(answers[0][1])[1] == [["AllBlocksCleared"]]


async def test_a_whole_buffer_is_replayed_without_loss_and_older_batches_are_gone(
    publisher: KvEventPublisher, client: zmq.asyncio.Context
):
    for _ in range(10_005):
        publisher.publish([Cleared()], token_ids)
    sequences = [sequence for sequence, _ in await replay(client, publisher.replay_port, 0)]
    assert sequences == [*range(5, 10_005), -1]


async def test_a_malformed_replay_request_is_passed_over(
    publisher: KvEventPublisher, client: zmq.asyncio.Context
):
    socket = client.socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{publisher.replay_port}")
    await socket.send_multipart([b"what?"])
    await socket.send_multipart([b"", b"short"])
    assert await replay(client, publisher.replay_port, 0) == [(-1, b"")]


async def test_a_taken_port_is_named(publisher: KvEventPublisher):
    with pytest.raises(ConfigurationError, match=f"{publisher.port}.*KV_EVENTS_PORT"):
        KvEventPublisher("127.0.0.1", publisher.port, 0, block_size=2)
