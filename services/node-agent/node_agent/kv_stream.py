"""The KV-event subscription to one engine: live messages over ZMQ, gaps repaired by replay.

Messages are collected in `poll`, which the caller runs every few tens of milliseconds: deltas are coalesced
over that time anyway, and one look per interval costs far less than waking up for each message.
"""

import asyncio
import time
from dataclasses import dataclass

import structlog
import zmq

from node_agent.policy.kv_events import decode_batch
from node_agent.policy.kv_index import KvIndex
from node_agent.policy.kv_sequence import Action, SequenceTracker
from tokenfleet.errors import ContractError, UnavailableError

log = structlog.get_logger(__name__)

REPLAY_IDLE_S = 2.0
"""A replay that brings nothing for this long has failed."""
RETRY_S = 5.0
HIGH_WATER_MARK = 100_000
YIELD_EVERY = 64
"""Messages handled between two turns of the event loop."""
MESSAGES_PER_POLL = 2_000


@dataclass(slots=True)
class StreamCounts:
    """What happened on one engine's stream since the agent first saw it."""

    batches: int = 0
    gaps: int = 0
    resets: int = 0
    """Times that everything was forgotten because a gap could not be repaired, or the publisher began anew."""
    undecodable: int = 0


class KvStream:
    """Keeps an index up to date with what an engine publishes."""

    def __init__(self, index: KvIndex, events_endpoint: str, replay_endpoint: str | None) -> None:
        self.index = index
        self.counts = StreamCounts()
        self.complete = False
        """Whether everything the engine still remembers has been taken in."""
        self._replay_endpoint = replay_endpoint
        self._sequences = SequenceTracker()
        self._retry_at_s = 0.0
        self._restart_generation: int | None = None
        self._log = log.bind(instance=index.instance)
        self._live = zmq.Context.instance().socket(zmq.SUB)
        self._live.setsockopt(zmq.LINGER, 0)
        self._live.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._live.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        self._live.setsockopt(zmq.SUBSCRIBE, b"")
        self._live.connect(events_endpoint)

    def close(self) -> None:
        self._live.close()

    def restart(self, generation: int) -> None:
        """Another engine process answers: the next `poll` forgets the old one's blocks and replays the new one's."""
        self._restart_generation = generation

    async def poll(self) -> None:
        """Take in what has arrived; on the first call, and after a failed one, also replay what came before."""
        if self._restart_generation is not None:
            self._begin_generation(self._restart_generation)
        if not self.complete and self._replay_endpoint and time.monotonic() >= self._retry_at_s:
            await self._replay_all()
        for handled in range(1, MESSAGES_PER_POLL + 1):
            message = self._receive()
            if message is None:
                return
            await self._on_live(*message)
            if handled % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _begin_generation(self, generation: int) -> None:
        self._restart_generation = None
        self.index.restart(generation)
        while self._receive() is not None:
            pass
        self._sequences.reconnect()
        self.complete = False
        self._retry_at_s = 0.0

    def _receive(self) -> tuple[int, bytes] | None:
        while True:
            try:
                frames = self._live.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(frames) == 3 and len(frames[1]) == 8:
                return int.from_bytes(frames[1], "big"), frames[2]
            self.counts.undecodable += 1

    async def _on_live(self, sequence: int, payload: bytes) -> None:
        action = self._sequences.live(sequence)
        if action is Action.APPLY:
            self._apply(payload)
        elif action is not Action.SKIP:
            await self._recover(action, sequence, payload)

    async def _recover(self, action: Action, sequence: int, payload: bytes) -> None:
        if action is Action.REPAIR and self._sequences.next_sequence > 0:
            self.counts.gaps += 1
            repaired = await self._replay()
        else:
            repaired = False
        if not repaired or self._sequences.next_sequence < sequence:
            self._log.warning("kv events lost or begun anew; starting over", sequence=sequence)
            self._start_over()
            await self._replay_all()
        if self._sequences.next_sequence < sequence:
            # No replay brings what came before: what is left of it is unknown, so nothing of it is kept.
            self._start_over()
            self._sequences.skip_to(sequence)
        if self._sequences.next_sequence == sequence:
            self._sequences.skip_to(sequence + 1)
            self._apply(payload)

    async def _replay_all(self) -> None:
        self.complete = await self._replay(from_start=True)
        self._retry_at_s = time.monotonic() + RETRY_S

    def _start_over(self) -> None:
        self._sequences.restart()
        if len(self.index):
            self.counts.resets += 1
            self.index.clear()

    async def _replay(self, *, from_start: bool = False) -> bool:
        """Ask for what is missing, or for everything, which then replaces what is held.

        False: no full answer, or one with a hole.
        """
        if self._replay_endpoint is None:
            return False
        socket = zmq.Context.instance().socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(self._replay_endpoint)
            start = 0 if from_start else self._sequences.next_sequence
            await _ask(socket, [b"", start.to_bytes(8, "big")])
            return await self._read_replay(socket, from_start)
        except (UnavailableError, zmq.ZMQError) as error:
            self._log.warning("kv replay failed", endpoint=self._replay_endpoint, error=str(error))
            return False
        finally:
            socket.close()

    async def _read_replay(self, socket: "zmq.Socket[bytes]", from_start: bool) -> bool:
        contiguous = True
        handled = 0
        while True:
            *_, number, payload = await _next_answer(socket)
            if self._restart_generation is not None:
                raise UnavailableError("the engine restarted meanwhile")
            if from_start and handled == 0:
                # Not before the answer is there: an engine that answers no replays keeps what came live.
                self._start_over()
            sequence = int.from_bytes(number, "big", signed=True)
            if sequence < 0:
                return contiguous
            if self._sequences.replayed(sequence):
                self._apply(payload)
            elif sequence > self._sequences.next_sequence:
                contiguous = False
            handled += 1
            if handled % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _apply(self, payload: bytes) -> None:
        try:
            self.index.apply(decode_batch(payload))
            self.counts.batches += 1
        except ContractError as error:
            self.counts.undecodable += 1
            if self.counts.undecodable == 1:
                self._log.warning("kv events passed over; further ones are only counted", error=str(error))


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
