"""vLLM's replay of KV events: what its publisher still remembers, from a sequence number on."""

import asyncio
import time
from collections.abc import AsyncGenerator

import zmq

from tokenfleet.errors import UnavailableError

REPLAY_IDLE_S = 2.0
"""A replay that brings nothing for this long has failed."""
YIELD_EVERY = 64
"""Messages handled between two turns of the event loop."""


async def replay(endpoint: str, start: int) -> AsyncGenerator[tuple[int, bytes | None], None]:
    """Each message from `start` on that is still there, then (-1, None).

    Raises:
        UnavailableError: no request taken or no answer in time, or one that is not vLLM's.
    """
    socket = zmq.Context.instance().socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(endpoint)
        await _ask(socket, [b"", start.to_bytes(8, "big")])
        handled = 0
        while True:
            # Newer versions put the topic before the number; it makes no difference here.
            *_, number, payload = await _next_answer(socket)
            sequence = int.from_bytes(number, "big", signed=True)
            if sequence < 0:
                yield -1, None
                return
            yield sequence, payload
            handled += 1
            if handled % YIELD_EVERY == 0:
                await asyncio.sleep(0)
    finally:
        socket.close()


async def _ask(socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
    deadline_s = time.monotonic() + REPLAY_IDLE_S
    while time.monotonic() < deadline_s:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
            return
        except zmq.Again:
            await asyncio.sleep(0.01)
    raise UnavailableError(f"the replay endpoint took no request within {REPLAY_IDLE_S} s")


async def _next_answer(socket: "zmq.Socket[bytes]") -> list[bytes]:
    deadline_s = time.monotonic() + REPLAY_IDLE_S
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            if time.monotonic() >= deadline_s:
                raise UnavailableError(f"no replay within {REPLAY_IDLE_S} s") from None
            await asyncio.sleep(0.005)
            continue
        if len(frames) >= 2 and len(frames[-2]) == 8:
            return frames
        raise UnavailableError("the replay endpoint answered in a form that is not vLLM's")
