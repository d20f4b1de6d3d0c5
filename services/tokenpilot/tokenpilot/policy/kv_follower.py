"""Following one instance's KV deltas: in order, without gaps, or again from a snapshot. Pure."""

from dataclasses import dataclass, field

from tokenfleet.blocks import unpack
from tokenfleet.contracts.fleet import KvDelta, KvSnapshot
from tokenpilot.policy.prefix_index import PrefixIndex

MAX_HELD_DELTAS = 1_000
"""Deltas kept while a snapshot is on its way; beyond it they are dropped and the next snapshot asked for."""


@dataclass(slots=True)
class KvFollower:
    """Keeps the index of one instance equal to its deltas; says when it needs a snapshot."""

    instance: str
    generation: int | None = None
    sequence: int = 0
    waiting_for_snapshot: bool = False
    held: list[KvDelta] = field(default_factory=list[KvDelta])

    def delta(self, index: PrefixIndex, delta: KvDelta) -> bool:
        """Apply a delta. True when a snapshot must be fetched (nothing more is asked while one is awaited)."""
        if self.generation is not None and delta.generation < self.generation:
            return False
        if self.waiting_for_snapshot:
            if len(self.held) < MAX_HELD_DELTAS:
                self.held.append(delta)
            return False
        if delta.generation == self.generation and delta.sequence == self.sequence + 1:
            self._apply(index, delta)
            return False
        if delta.generation == self.generation and delta.sequence <= self.sequence:
            return False  # a duplicate
        if delta.generation != self.generation and delta.sequence == 1:
            index.drop(self.instance)
            self.generation = delta.generation
            self._apply(index, delta)
            return False
        # Wrong blocks only mislead predictions, but a gap cannot be bridged: start from nothing.
        index.drop(self.instance)
        self.generation = delta.generation
        self.waiting_for_snapshot = True
        self.held = [delta]
        return True

    def snapshot(self, index: PrefixIndex, snapshot: KvSnapshot) -> None:
        """Start from a snapshot and catch up with the deltas held meanwhile."""
        self.waiting_for_snapshot = False
        self.generation, self.sequence = snapshot.generation, snapshot.sequence
        index.replace(self.instance, unpack(snapshot.blocks))
        held, self.held = self.held, []
        for delta in held:
            if delta.generation == self.generation and delta.sequence == self.sequence + 1:
                self._apply(index, delta)

    def _apply(self, index: PrefixIndex, delta: KvDelta) -> None:
        self.sequence = delta.sequence
        if delta.cleared:
            index.drop(self.instance)
        index.remove(self.instance, unpack(delta.removed))
        index.store(self.instance, unpack(delta.stored))
