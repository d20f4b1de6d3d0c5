"""Following one instance's KV deltas: in order, without gaps, or again from a snapshot. Pure."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenfleet.blocks import HASH_BYTES, unpack
from tokenfleet.contracts.fleet import IndexQuality, KvDelta, KvSnapshot
from tokenpilot.policy.prefix_index import PrefixIndex

MAX_HELD_DELTAS = 1_000
"""The latest deltas kept while a snapshot is on its way; if it is older than all of them, another one is asked for."""
SILENT_S = 11.0
"""Wall seconds: a node agent sends a delta at least every 5 s, empty if need be. One lost shows with the next, so
only two in a row, and a second on the way, leave a doubt that nothing else would raise."""
SLICE_BYTES = 2_000 * HASH_BYTES
"""Of a snapshot, stored at a time: about a millisecond."""


@dataclass(slots=True)
class KvFollower:
    """Keeps the index of one instance equal to its deltas; says when it needs a snapshot.

    Times are wall seconds.
    """

    instance: str
    generation: int | None = None
    sequence: int = 0
    waiting_for_snapshot: bool = False
    complete: bool = True
    """What the node agent said last: whether it has seen everything that the engine stored and removed."""
    heard_s: float = 0.0
    """When the instance's deltas or a snapshot last arrived."""
    held: deque[KvDelta] = field(default_factory=lambda: deque[KvDelta](maxlen=MAX_HELD_DELTAS))

    def delta(self, index: PrefixIndex, delta: KvDelta, now_s: float) -> bool:
        """Apply a delta. True when a snapshot must be fetched (nothing more is asked while one is awaited)."""
        if self.generation is not None and delta.generation < self.generation:
            return False
        self.heard_s = now_s
        if self.waiting_for_snapshot:
            self.held.append(delta)
            return False
        if self._apply(index, delta):
            return False
        # Wrong blocks only mislead predictions, but a gap cannot be bridged: start from nothing.
        index.drop(self.instance)
        self.generation = delta.generation
        self.waiting_for_snapshot = True
        self.held.append(delta)
        return True

    def snapshot(self, index: PrefixIndex, snapshot: KvSnapshot, now_s: float) -> bool:
        """Start from a snapshot and catch up with the deltas held meanwhile.

        Returns whether another one must be fetched: this one is older than what was missed.
        """
        for _ in self.loading(index, snapshot, now_s):
            pass
        return self.waiting_for_snapshot

    def loading(self, index: PrefixIndex, snapshot: KvSnapshot, now_s: float) -> Iterator[None]:
        """As `snapshot`, with a pause after each slice of blocks, in which further deltas may arrive.

        It must be run to its end, after which `waiting_for_snapshot` says whether another one must be fetched.
        """
        index.drop(self.instance)
        tiers = ((snapshot.blocks, index.store), (snapshot.offloaded, index.store_offloaded))
        for blocks, store in tiers:
            for start in range(0, len(blocks), SLICE_BYTES):
                store(self.instance, unpack(blocks[start : start + SLICE_BYTES]))
                yield
        self.generation, self.sequence = snapshot.generation, snapshot.sequence
        self.complete = snapshot.complete
        self.heard_s = max(self.heard_s, now_s)
        self.waiting_for_snapshot = False
        while self.held:
            delta = self.held[0]
            if delta.generation >= snapshot.generation and not self._apply(index, delta):
                index.drop(self.instance)
                self.waiting_for_snapshot = True
                return
            self.held.popleft()

    def quality(self, now_s: float) -> IndexQuality:
        """How far to trust what the index says of this instance."""
        silent = now_s - self.heard_s > SILENT_S
        return "degraded" if self.waiting_for_snapshot or silent or not self.complete else "exact"

    def _apply(self, index: PrefixIndex, delta: KvDelta) -> bool:
        """Apply a delta if it is next, pass over one seen before. False: some in between are missing."""
        if delta.generation == self.generation:
            if delta.sequence <= self.sequence:
                return True
            if delta.sequence != self.sequence + 1:
                return False
        elif delta.sequence == 1:  # another engine process, which starts with nothing
            index.drop(self.instance)
            self.generation = delta.generation
        else:
            return False
        self.sequence = delta.sequence
        self.complete = delta.complete
        if delta.cleared:
            index.drop(self.instance)
        index.remove(self.instance, unpack(delta.removed))
        index.remove_offloaded(self.instance, unpack(delta.removed_offloaded))
        index.store(self.instance, unpack(delta.stored))
        index.store_offloaded(self.instance, unpack(delta.stored_offloaded))
        return True
