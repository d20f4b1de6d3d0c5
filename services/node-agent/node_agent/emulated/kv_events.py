"""KV-cache events over ZMQ in vLLM's format.

A PUB socket sends `[topic, sequence, payload]`: the sequence as 8 big-endian bytes, the payload MessagePack
`[time, [event, ...], data-parallel rank]`, each event an array that begins with its type. A ROUTER socket
answers a first sequence wanted with all batches kept from there on, and ends with sequence -1.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from tokenfleet.engine.kv_cache import KvChange, Removed, Stored
from tokenfleet.errors import ConfigurationError

BUFFERED_BATCHES = 10_000
PUBLISH_LIMIT = 100_000
"""Batches queued for a slow subscriber; it then loses some and asks for a replay."""
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
TOPIC = b""
MEDIUM = "GPU"
RANK = 0

PromptBlocks = Callable[[str, int, int], list[int]]
"""Request, first block, blocks -> their token ids."""


class KvEventPublisher:
    """Publishes what an engine's cache stores and removes.

    Args:
        host: the address to bind.
        port: of the PUB socket; 0: any free one.
        replay_port: of the ROUTER socket; 0: any free one.
        block_size: tokens per block.

    Raises:
        ConfigurationError: a port is taken.
    """

    def __init__(self, host: str, port: int, replay_port: int, block_size: int) -> None:
        self._block_size = block_size
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=BUFFERED_BATCHES)
        self._sequence = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.SNDHWM, PUBLISH_LIMIT)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.setsockopt(zmq.SNDHWM, 0)  # A ROUTER drops beyond its limit, and a replay is long.
        self._descriptor = int(self._replay.getsockopt(zmq.FD))
        self.port = _bind(self._pub, host, port)
        self.replay_port = _bind(self._replay, host, replay_port)

    def start(self) -> None:
        """Begin to answer replay requests on the running event loop."""
        asyncio.get_running_loop().add_reader(self._descriptor, self._serve_replays)

    def stop(self) -> None:
        """Close the sockets."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self._context.destroy(linger=0)

    def publish(self, changes: list[KvChange], prompt_blocks: PromptBlocks) -> None:
        """Send one batch."""
        events = [self._event(change, prompt_blocks) for change in changes]
        payload = self._encoder.encode([time.time(), events, RANK])
        sequence = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        self._buffer.append((sequence, payload))
        self._pub.send_multipart((TOPIC, sequence, payload), zmq.NOBLOCK)

    def _event(self, change: KvChange, prompt_blocks: PromptBlocks) -> list[Any]:
        if isinstance(change, Stored):
            token_ids = prompt_blocks(change.request_id, change.first_block, len(change.hashes))
            return ["BlockStored", change.hashes, change.parent, token_ids, self._block_size, None, MEDIUM]
        if isinstance(change, Removed):
            return ["BlockRemoved", change.hashes, MEDIUM]
        return ["AllBlocksCleared"]

    def _serve_replays(self) -> None:
        # ZMQ's descriptor is edge-triggered: only an empty queue may be left behind.
        while int(self._replay.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = self._replay.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 3 and len(frames[2]) == 8:
                self._answer(frames[0], int.from_bytes(frames[2], "big"))

    def _answer(self, client: bytes, start: int) -> None:
        for sequence, payload in self._buffer:
            if int.from_bytes(sequence, "big") >= start:
                self._replay.send_multipart((client, b"", sequence, payload))
        self._replay.send_multipart((client, b"", END_OF_REPLAY, b""))


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> int:
    try:
        socket.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        raise ConfigurationError(
            f"Cannot bind {host}:{port} for KV events (TOKENFLEET_ENGINE_KV_EVENTS_PORT, "
            f"TOKENFLEET_ENGINE_REPLAY_PORT): {error}; choose another, or port 0 for any free one"
        ) from error
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
