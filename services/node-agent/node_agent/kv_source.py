"""One publisher of KV events, as vLLM and SGLang run one for each data-parallel rank: live messages over ZMQ,
gaps repaired by replay.

Messages are collected in `poll`, which the caller runs every few tens of milliseconds: deltas are coalesced
over that time anyway, and one look per interval costs far less than waking up for each message.
"""

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass

import structlog
import zmq

from node_agent.kv_replay import YIELD_EVERY, replay
from node_agent.policy.engine_spec import KvEndpoint
from node_agent.policy.kv_events import decode_batch
from node_agent.policy.kv_index import KvIndex
from node_agent.policy.kv_sequence import Action, SequenceTracker
from tokenfleet.errors import ContractError, UnavailableError

log = structlog.get_logger(__name__)

RETRY_S = 5.0
"""After this time a replay that was not answered is asked for again."""
HIGH_WATER_MARK = 100_000
MESSAGES_PER_POLL = 2_000


@dataclass(slots=True)
class StreamCounts:
    """What happened on one engine's streams since the agent first saw it."""

    batches: int = 0
    gaps: int = 0
    resets: int = 0
    """Times that everything was forgotten because a gap could not be repaired, or the publisher began anew."""
    undecodable: int = 0


class KvSource:
    """Takes in what one publisher sends, exactly once, and tells the index when something is missing."""

    def __init__(self, index: KvIndex, source: int, endpoint: KvEndpoint, counts: StreamCounts) -> None:
        self._index = index
        self._source = source
        self._counts = counts
        self._replay_endpoint = endpoint.replay
        self._sequences = SequenceTracker()
        self._joined = False
        """Whether a replay has brought all that the engine still remembers."""
        self._retry_at_s = 0.0
        self._restarts = 0
        self._log = log.bind(instance=index.instance, source=source)
        self._live = zmq.Context.instance().socket(zmq.SUB)
        self._live.setsockopt(zmq.LINGER, 0)
        self._live.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._live.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        self._live.setsockopt(zmq.SUBSCRIBE, b"")
        self._live.connect(endpoint.events)

    def close(self) -> None:
        self._live.close()

    def interrupt(self) -> None:
        """Another engine process answers: a replay under way is of no use any more."""
        self._restarts += 1

    def begin_anew(self) -> None:
        """Expect another engine process, from its beginning."""
        while self._receive() is not None:
            pass
        self._sequences.reconnect()
        self._joined = False
        self._retry_at_s = 0.0

    async def poll(self) -> None:
        """Take in what has arrived; on the first call, and after a failed one, also replay what came before."""
        if not self._joined and self._replay_endpoint and time.monotonic() >= self._retry_at_s:
            await self._replay_all()
        for handled in range(1, MESSAGES_PER_POLL + 1):
            message = self._receive()
            if message is None:
                return
            await self._on_live(*message)
            if handled % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _receive(self) -> tuple[int, bytes] | None:
        while True:
            try:
                frames = self._live.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(frames) == 3 and len(frames[1]) == 8:
                return int.from_bytes(frames[1], "big"), frames[2]
            self._counts.undecodable += 1

    async def _on_live(self, sequence: int, payload: bytes) -> None:
        action = self._sequences.live(sequence)
        if action is Action.APPLY:
            if sequence == 0:
                self._index.whole(self._source)
            self._apply(payload)
        elif action is not Action.SKIP:
            await self._recover(action, sequence, payload)

    async def _recover(self, action: Action, sequence: int, payload: bytes) -> None:
        if action is Action.REPAIR and self._sequences.next_sequence > 0:
            self._counts.gaps += 1
            repaired = await self._replay(self._sequences.next_sequence)
        else:
            repaired = False
        if not repaired or self._sequences.next_sequence < sequence:
            self._log.warning("kv events lost or begun anew; starting over", sequence=sequence)
            self._start_over()
            await self._replay_all()
        if self._sequences.next_sequence < sequence:
            # No replay brings what came before: what is left of it is unknown, so nothing of it is kept.
            self._start_over()
            self._joined = False
        if self._sequences.next_sequence <= sequence:
            self._sequences.take(sequence)
            if self._sequences.from_beginning:
                self._index.whole(self._source)
            self._apply(payload)

    async def _replay_all(self) -> None:
        self._joined = await self._replay(0)
        if self._joined and self._sequences.from_beginning:
            self._index.whole(self._source)
        self._retry_at_s = time.monotonic() + RETRY_S

    def _start_over(self) -> None:
        if self._sequences.next_sequence > 0 and len(self._index):
            self._counts.resets += 1
        self._sequences.restart()
        self._index.forget(self._source)
        self._index.lost(self._source)

    async def _replay(self, start: int) -> bool:
        """Ask for what is missing, or (from 0) for everything, which then replaces what is held.

        False: no full answer, or one with a hole.
        """
        if self._replay_endpoint is None:
            return False
        restarts = self._restarts
        replaced = start > 0
        contiguous = True
        try:
            async with aclosing(replay(self._replay_endpoint, start)) as messages:
                async for sequence, payload in messages:
                    if self._restarts != restarts:
                        raise UnavailableError("the engine restarted meanwhile")
                    if not replaced:
                        # Not before the answer is there: an engine that answers no replays keeps what came live.
                        self._start_over()
                        replaced = True
                    if payload is None:
                        return contiguous
                    if self._sequences.replayed(sequence):
                        self._apply(payload)
                    elif sequence > self._sequences.next_sequence:
                        contiguous = False
        except (UnavailableError, zmq.ZMQError) as error:
            self._log.warning("kv replay failed", endpoint=self._replay_endpoint, error=str(error))
        return False

    def _apply(self, payload: bytes) -> None:
        try:
            self._index.apply(decode_batch(payload), self._source)
            self._counts.batches += 1
        except ContractError as error:
            self._counts.undecodable += 1
            self._index.lost(self._source)
            if self._counts.undecodable == 1:
                self._log.warning("kv events passed over; further ones are only counted", error=str(error))
