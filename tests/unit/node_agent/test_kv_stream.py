"""The stream takes in everything exactly once, or forgets everything: over real ZMQ sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import numpy as np
import pytest
import zmq

from node_agent import kv_replay, kv_source
from node_agent.kv_stream import KvStream
from node_agent.policy.engine_spec import KvEndpoint
from node_agent.policy.kv_index import KvIndex
from tokenfleet.blocks import HASH_BYTES, BlockHasher

BLOCK = 2
HASHER = BlockHasher(b"secret")


class Publisher:
    """An engine's publisher, which can lose messages on the live connection and forget old ones."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        context = zmq.Context.instance()
        self._live = context.socket(zmq.XPUB)
        self._live.setsockopt(zmq.LINGER, 0)
        self.endpoint = f"tcp://127.0.0.1:{self._live.bind_to_random_port('tcp://127.0.0.1')}"
        self._replay = context.socket(zmq.ROUTER)
        self._replay.setsockopt(zmq.LINGER, 0)
        self.replay_endpoint = f"tcp://127.0.0.1:{self._replay.bind_to_random_port('tcp://127.0.0.1')}"
        self.buffer: list[tuple[int, bytes]] = []
        self.sequence = 0
        self.replays = 0
        self.answers_replays = True
        self.topic_in_replays: tuple[bytes, ...] = ()
        """Newer vLLM sends it (0.32 does)."""

    async def subscribed(self) -> None:
        while not self._live.poll(0):
            await asyncio.sleep(0.005)
        self._live.recv()

    def publish(self, *events: object, lost: bool = False) -> None:
        payload = msgspec.msgpack.encode([0.0, list(events), self._rank])
        number, self.sequence = self.sequence, self.sequence + 1
        self.buffer.append((number, payload))
        if not lost:
            self.send(number)

    def send(self, number: int) -> None:
        payload = dict(self.buffer)[number]
        self._live.send_multipart([b"kv-events", number.to_bytes(8, "big"), payload])

    def begin_anew(self) -> None:
        self.buffer.clear()
        self.sequence = 0

    async def serve_replays(self) -> None:
        while True:
            if self.answers_replays and self._replay.poll(0):
                client, empty, start = self._replay.recv_multipart()
                self.replays += 1
                head = [client, empty, *self.topic_in_replays]
                for number, payload in self.buffer:
                    if number >= int.from_bytes(start, "big"):
                        self._replay.send_multipart([*head, number.to_bytes(8, "big"), payload])
                self._replay.send_multipart([*head, (-1).to_bytes(8, "big", signed=True), b""])
            await asyncio.sleep(0.002)

    def close(self) -> None:
        self._live.close()
        self._replay.close()


@contextlib.asynccontextmanager
async def publishing(rank: int = 0) -> AsyncIterator[Publisher]:
    publisher = Publisher(rank)
    task = asyncio.create_task(publisher.serve_replays())
    yield publisher
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    publisher.close()


@contextlib.contextmanager
def following(*publishers: Publisher, replays: bool = True) -> Iterator[KvStream]:
    index = KvIndex("engine", 1, HASHER, BLOCK, sources=len(publishers))
    stream = KvStream(
        index, [KvEndpoint(each.endpoint, each.replay_endpoint if replays else None) for each in publishers]
    )
    yield stream
    stream.close()


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    async with publishing() as publisher:
        yield publisher


@pytest.fixture
async def stream(publisher: Publisher) -> AsyncIterator[KvStream]:
    with following(publisher) as stream:
        yield stream


def stored(number: int) -> list[object]:
    """A one-block prompt of its own."""
    return ["BlockStored", [number], None, [number] * BLOCK, BLOCK, None, "GPU"]


def child(number: int, parent: int) -> list[object]:
    """A second block of that prompt."""
    return ["BlockStored", [number], parent, [number] * BLOCK, BLOCK, None, "GPU"]


def removed(number: int) -> list[object]:
    return ["BlockRemoved", [number], "GPU"]


def held(stream: KvStream) -> set[bytes]:
    packed = stream.index.snapshot().blocks
    return {packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)}


def prompts(*numbers: int) -> set[bytes]:
    return {HASHER.chain(np.full(BLOCK, number, dtype=np.uint32), BLOCK) for number in numbers}


async def poll_until(stream: KvStream, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await stream.poll()
            await asyncio.sleep(0.005)


async def join(stream: KvStream, publisher: Publisher) -> None:
    await publisher.subscribed()
    await poll_until(stream, lambda: stream.index.complete)


async def test_what_was_published_before_joining_is_replayed(stream: KvStream, publisher: Publisher) -> None:
    publisher.publish(stored(1), stored(2), lost=True)
    publisher.publish(removed(1), lost=True)
    await join(stream, publisher)
    assert held(stream) == prompts(2)
    publisher.publish(stored(3))
    await poll_until(stream, lambda: held(stream) == prompts(2, 3))
    assert publisher.replays == 1


async def test_a_gap_is_repaired_from_where_it_began(stream: KvStream, publisher: Publisher) -> None:
    await join(stream, publisher)
    publisher.publish(stored(1))
    publisher.publish(removed(1), lost=True)
    publisher.publish(stored(2), lost=True)
    publisher.publish(stored(3))
    publisher.publish(stored(4))
    await poll_until(stream, lambda: held(stream) == prompts(2, 3, 4))
    assert stream.counts.gaps == 1
    assert stream.counts.resets == 0
    assert stream.index.complete


async def test_a_message_that_comes_by_replay_and_live_counts_once(
    stream: KvStream, publisher: Publisher
) -> None:
    # Two copies stored, one removed: applied twice, the removal would lose the block.
    await publisher.subscribed()
    publisher.publish(stored(1), child(2, 1), child(2, 1))
    publisher.publish(removed(2))
    await poll_until(stream, lambda: stream.index.complete)
    publisher.publish(stored(3))
    await poll_until(stream, lambda: held(stream) >= prompts(3))
    assert len(held(stream)) == 3


async def test_a_message_sent_twice_counts_once(stream: KvStream, publisher: Publisher) -> None:
    await join(stream, publisher)
    publisher.publish(stored(1), child(2, 1), child(2, 1))
    publisher.publish(removed(2))
    publisher.send(1)
    publisher.publish(stored(3))
    await poll_until(stream, lambda: held(stream) >= prompts(3))
    assert len(held(stream)) == 3
    assert stream.index.complete
    assert stream.counts.gaps == 0


async def test_messages_out_of_order_end_in_the_same_blocks(stream: KvStream, publisher: Publisher) -> None:
    await join(stream, publisher)
    publisher.publish(stored(1), stored(2))
    publisher.publish(removed(1), lost=True)
    publisher.publish(stored(3))
    publisher.send(1)
    publisher.publish(stored(4))
    await poll_until(stream, lambda: held(stream) == prompts(2, 3, 4))
    assert stream.index.complete


async def test_without_replay_messages_out_of_order_leave_nothing_wrong(publisher: Publisher) -> None:
    with following(publisher, replays=False) as stream:
        await publisher.subscribed()
        publisher.publish(stored(1), stored(2))
        publisher.publish(removed(1), lost=True)
        publisher.publish(stored(3))
        publisher.send(1)
        publisher.publish(stored(4))
        await poll_until(stream, lambda: held(stream) >= prompts(4))
        assert held(stream) <= prompts(2, 3, 4)
        assert not stream.index.complete


async def test_a_replay_with_the_topic_in_front_is_read_too(stream: KvStream, publisher: Publisher) -> None:
    publisher.topic_in_replays = (b"kv-events",)
    publisher.publish(stored(1), lost=True)
    await join(stream, publisher)
    assert held(stream) == prompts(1)


async def test_a_gap_that_cannot_be_repaired_forgets_what_was_held(
    stream: KvStream, publisher: Publisher
) -> None:
    await join(stream, publisher)
    publisher.publish(stored(1))
    await poll_until(stream, lambda: held(stream) == prompts(1))
    publisher.publish(removed(1), lost=True)
    publisher.buffer.clear()
    publisher.publish(stored(2), lost=True)
    publisher.publish(stored(3))
    await poll_until(stream, lambda: held(stream) == prompts(2, 3))
    assert stream.counts.resets == 1
    assert not stream.index.complete


async def test_a_publisher_that_begins_anew_is_followed_from_its_beginning(
    stream: KvStream, publisher: Publisher
) -> None:
    await join(stream, publisher)
    for number in range(1, 4):
        publisher.publish(stored(number))
    await poll_until(stream, lambda: held(stream) == prompts(1, 2, 3))
    publisher.begin_anew()
    publisher.publish(stored(7), lost=True)
    publisher.publish(stored(8))
    await poll_until(stream, lambda: held(stream) == prompts(7, 8))


async def test_another_engine_process_empties_the_index_under_its_own_generation(
    stream: KvStream, publisher: Publisher
) -> None:
    await join(stream, publisher)
    publisher.publish(stored(1))
    await poll_until(stream, lambda: held(stream) == prompts(1))
    publisher.begin_anew()
    publisher.publish(stored(9), lost=True)
    stream.restart(generation=2)
    await poll_until(stream, lambda: held(stream) == prompts(9))
    assert stream.index.generation == 2
    publisher.publish(stored(10))
    await poll_until(stream, lambda: held(stream) == prompts(9, 10))


async def test_without_replay_a_gap_leaves_only_what_came_since_until_the_cache_is_cleared(
    publisher: Publisher,
) -> None:
    with following(publisher, replays=False) as stream:
        await publisher.subscribed()
        publisher.publish(stored(1))
        await poll_until(stream, lambda: held(stream) == prompts(1))
        assert stream.index.complete, "followed from the publisher's first message on"
        publisher.publish(removed(1), lost=True)
        publisher.publish(stored(2))
        await poll_until(stream, lambda: held(stream) == prompts(2))
        publisher.publish(stored(3))
        await poll_until(stream, lambda: held(stream) == prompts(2, 3))
        assert not stream.index.complete
        publisher.publish(["AllBlocksCleared"], stored(4))
        await poll_until(stream, lambda: held(stream) == prompts(4))
        assert stream.index.complete


async def test_without_replay_who_joins_late_knows_that_something_is_missing(publisher: Publisher) -> None:
    publisher.publish(stored(1))
    with following(publisher, replays=False) as stream:
        await publisher.subscribed()
        publisher.publish(stored(2))
        await poll_until(stream, lambda: held(stream) == prompts(2))
        assert not stream.index.complete
        publisher.begin_anew()
        publisher.publish(stored(3))
        await poll_until(stream, lambda: held(stream) == prompts(3))
        assert stream.index.complete, "the new publisher's first message was there"


async def test_a_replay_that_begins_late_is_used_but_incomplete(
    stream: KvStream, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_source, "RETRY_S", 0.0)
    for number in range(1, 4):
        publisher.publish(stored(number), lost=True)
    del publisher.buffer[0]
    await publisher.subscribed()
    await poll_until(stream, lambda: held(stream) == prompts(2, 3))
    await stream.poll()
    assert not stream.index.complete
    assert publisher.replays == 1, "asking again would bring no more"


async def test_each_rank_is_followed_by_itself() -> None:
    async with publishing(0) as first, publishing(1) as second:
        first.publish(stored(1), lost=True)
        with following(first, second) as stream:
            await first.subscribed()
            await second.subscribed()
            await poll_until(stream, lambda: stream.index.complete)
            second.publish(stored(1), stored(2))
            first.publish(removed(1), stored(3))
            await poll_until(stream, lambda: held(stream) == prompts(1, 2, 3))
            # The first rank loses its place for good; the second one's blocks and place stay.
            first.publish(stored(4), lost=True)
            first.buffer.clear()
            first.publish(stored(5))
            await poll_until(stream, lambda: held(stream) == prompts(1, 2, 5))
            assert not stream.index.complete
            second.publish(["AllBlocksCleared"])
            await poll_until(stream, lambda: held(stream) == prompts(5))
            assert not stream.index.complete
            first.publish(["AllBlocksCleared"])
            await poll_until(stream, lambda: stream.index.complete)
            assert held(stream) == set()


async def test_another_engine_process_is_complete_once_replayed_on_every_rank() -> None:
    async with publishing(0) as first, publishing(1) as second:
        with following(first, second) as stream:
            await first.subscribed()
            await second.subscribed()
            first.publish(stored(1))
            second.publish(stored(2))
            await poll_until(stream, lambda: held(stream) == prompts(1, 2))
            first.begin_anew()
            second.begin_anew()
            second.publish(stored(3), lost=True)
            second.answers_replays = False
            stream.restart(generation=2)
            poll = asyncio.create_task(stream.poll())
            await asyncio.sleep(0.1)
            assert stream.index.generation == 2
            assert not stream.index.complete
            second.answers_replays = True
            await poll
            await poll_until(stream, lambda: stream.index.complete)
            assert held(stream) == prompts(3)


async def test_a_replay_that_is_not_answered_is_tried_again_later(
    stream: KvStream, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_replay, "REPLAY_IDLE_S", 0.1)
    monkeypatch.setattr(kv_source, "RETRY_S", 0.2)
    publisher.publish(stored(1), lost=True)
    publisher.answers_replays = False
    await stream.poll()
    assert not stream.index.complete
    publisher.answers_replays = True
    await poll_until(stream, lambda: stream.index.complete)
    assert held(stream) == prompts(1)


async def test_messages_that_are_no_events_are_counted_and_leave_the_index_incomplete(
    stream: KvStream, publisher: Publisher
) -> None:
    await join(stream, publisher)
    publisher.publish(["BlockStored", "nonsense"])
    publisher.publish(stored(1))
    await poll_until(stream, lambda: held(stream) == prompts(1))
    assert stream.counts.undecodable == 1
    assert not stream.index.complete
