"""The blocks one engine holds, named by the fleet's own hashes.

Engines hash blocks each in their own way, so an engine's hash says nothing to anybody else. The index
translates: a stored block's own hash comes from its tokens and its parent's own hash, exactly as ingress
hashes a prompt. A block whose own hash cannot be known (unknown parent, no tokens, images or a salt in its
key, another block size) is left out: a missing block costs a prediction, a wrong one would mislead.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from node_agent.policy.kv_events import BlockRemoved, BlockStored, EngineHash, EventBatch
from tokenfleet.blocks import BlockHasher, id_tokens
from tokenfleet.contracts.fleet import KvDelta, KvSnapshot

MAX_DELTA_BLOCKS = 2_000
DEFAULT_MEDIUM = "GPU"

Tier: TypeAlias = tuple[int, str, int]
"""Where a block lies: data-parallel rank, medium, KV-cache group."""


@dataclass(slots=True)
class _Block:
    own: bytes
    copies: dict[Tier, int] = field(default_factory=dict[Tier, int])
    """An engine may compute the same block twice; each copy is stored and removed by its own event."""


class KvIndex:
    """Fed with events; gives the changes since the last time, and the whole."""

    def __init__(self, instance: str, generation: int, hasher: BlockHasher, block_size_tokens: int) -> None:
        self.instance = instance
        self.generation = generation
        self.sequence = 0
        """Of the last delta given out."""
        self.ignored: Counter[str] = Counter()
        """Stored blocks left out, by reason."""
        self._hasher = hasher
        self._block_size_tokens = block_size_tokens
        self._blocks: dict[EngineHash, _Block] = {}
        self._held: Counter[bytes] = Counter()
        self._held_before: dict[bytes, bool] = {}
        self._cleared = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def pending(self) -> int:
        """An upper bound of the blocks in the next deltas."""
        return len(self._held_before)

    def apply(self, batch: EventBatch) -> None:
        """Take in one batch of events."""
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event, batch.rank)
            elif isinstance(event, BlockRemoved):
                self._remove(event, batch.rank)
            else:
                self._clear_rank(batch.rank)

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()
        self._held.clear()
        self._held_before.clear()
        self._cleared = True

    def restart(self, generation: int) -> None:
        """Begin anew for another engine process: no blocks, and deltas numbered from 1."""
        self.clear()
        self._cleared = False
        self.generation = generation
        self.sequence = 0

    def deltas(self, *, heartbeat: bool = False) -> list[KvDelta]:
        """The net changes since the last call, in pieces of at most `MAX_DELTA_BLOCKS` blocks each way.

        Args:
            heartbeat: give an empty delta when nothing changed, so that a reader that missed the last one
                finds out.
        """
        stored = [own for own, before in self._held_before.items() if not before and own in self._held]
        removed = [own for own, before in self._held_before.items() if before and own not in self._held]
        cleared = self._cleared
        self._held_before.clear()
        self._cleared = False
        if not (stored or removed or cleared or heartbeat):
            return []
        deltas: list[KvDelta] = []
        for start in range(0, max(len(stored), len(removed), 1), MAX_DELTA_BLOCKS):
            self.sequence += 1
            deltas.append(
                KvDelta(
                    instance=self.instance,
                    generation=self.generation,
                    sequence=self.sequence,
                    stored=b"".join(stored[start : start + MAX_DELTA_BLOCKS]),
                    removed=b"".join(removed[start : start + MAX_DELTA_BLOCKS]),
                    cleared=cleared and start == 0,
                )
            )
        return deltas

    def snapshot(self) -> KvSnapshot:
        """All blocks as of the last delta given out; take the pending deltas first."""
        return KvSnapshot(
            instance=self.instance,
            generation=self.generation,
            sequence=self.sequence,
            blocks=b"".join(self._held),
        )

    def _store(self, event: BlockStored, rank: int) -> None:
        tier = _tier(rank, event.medium, event.group_idx)
        for engine_hash, own in zip(event.block_hashes, self._own_hashes(event), strict=True):
            if own is None:
                continue
            block = self._blocks.setdefault(engine_hash, _Block(own))
            if not block.copies:
                self._hold(own)
            block.copies[tier] = block.copies.get(tier, 0) + 1

    def _own_hashes(self, event: BlockStored) -> Iterable[bytes | None]:
        """The own hash of each of an event's blocks, where it is known or can be computed."""
        width = event.block_size * 4
        tokens = id_tokens(event.token_ids).astype("<u4", copy=False).tobytes()
        adapter = event.lora_name or ("" if event.lora_id is None else f"lora-{event.lora_id}")
        unusable = self._unusable(event)
        parent: bytes | None = b""
        if event.parent_block_hash is not None:
            known = self._blocks.get(event.parent_block_hash)
            parent = known.own if known else None
        for position, engine_hash in enumerate(event.block_hashes):
            known = self._blocks.get(engine_hash)
            reason = unusable
            chunk = tokens[position * width : (position + 1) * width]
            if known and not unusable:
                parent = known.own
                yield parent
                continue
            if not reason and (not chunk or len(chunk) < width):
                reason = "no_tokens"
            if not reason and parent is None:
                reason = "unknown_parent"
            if not reason and _has_extra_keys(event.extra_keys, position, adapter):
                reason = "extra_keys"
            if reason or parent is None:
                self.ignored[reason] += 1
                parent = None
            else:
                parent = self._hasher.child(parent, chunk, adapter)
            yield parent

    def _unusable(self, event: BlockStored) -> str:
        if event.token_ids and event.block_size != self._block_size_tokens:
            return "block_size"
        # A sliding-window layer's block is no evidence that the whole prefix is still there.
        return "sliding_window" if event.kv_cache_spec_sliding_window else ""

    def _remove(self, event: BlockRemoved, rank: int) -> None:
        tier = _tier(rank, event.medium, event.group_idx)
        for engine_hash in event.block_hashes:
            block = self._blocks.get(engine_hash)
            if block is None or tier not in block.copies:
                continue
            block.copies[tier] -= 1
            if not block.copies[tier]:
                del block.copies[tier]
                self._drop_if_gone(engine_hash, block)

    def _clear_rank(self, rank: int) -> None:
        if all(tier[0] == rank for block in self._blocks.values() for tier in block.copies):
            self.clear()
            return
        for engine_hash, block in list(self._blocks.items()):
            block.copies = {tier: count for tier, count in block.copies.items() if tier[0] != rank}
            self._drop_if_gone(engine_hash, block)

    def _drop_if_gone(self, engine_hash: EngineHash, block: _Block) -> None:
        if block.copies:
            return
        del self._blocks[engine_hash]
        self._held_before.setdefault(block.own, True)
        self._held[block.own] -= 1
        if not self._held[block.own]:
            del self._held[block.own]

    def _hold(self, own: bytes) -> None:
        self._held_before.setdefault(own, own in self._held)
        self._held[own] += 1


def _tier(rank: int, medium: str | None, group: int | None) -> Tier:
    return rank, medium or DEFAULT_MEDIUM, group or 0


def _has_extra_keys(extra_keys: Sequence[Any] | None, position: int, adapter: str) -> bool:
    """Whether a block's key covers more than its tokens and its adapter."""
    keys = extra_keys[position] if extra_keys and position < len(extra_keys) else None
    return bool(keys) and any(key != adapter for key in keys)
