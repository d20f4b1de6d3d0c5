"""The blocks one engine holds, named by the fleet's own hashes.

Engines hash blocks each in their own way, so an engine's hash says nothing to anybody else. The index
translates: a stored block's own hash comes from its tokens and its parent's own hash, exactly as ingress
hashes a prompt. A block whose own hash cannot be known is left out (see `kv_naming`): a missing block costs
a prediction, a wrong one would mislead.

Only events of the accelerator's own memory name blocks. Offloading connectors report a block without its
adapter, images or salt, so their events are matched by the engine's hash to what the accelerator reported.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from node_agent.policy.held_blocks import HeldBlocks
from node_agent.policy.kv_events import BlockRemoved, BlockStored, EngineHash, EventBatch
from node_agent.policy.kv_naming import BlockNamer
from node_agent.policy.kv_places import AttentionGroups, Place, place_of
from tokenfleet.blocks import BlockHasher
from tokenfleet.contracts.fleet import KvDelta, KvSnapshot

MAX_DELTA_BLOCKS = 2_000
OFFLOADED_LIMIT_BLOCKS = 1_000_000


@dataclass(slots=True)
class _Block:
    own: bytes
    copies: dict[Place, int] = field(default_factory=dict[Place, int])
    """An engine may compute the same block twice; each copy is stored and removed by its own event."""
    on_accelerator: bool = False
    offloaded: bool = False


class KvIndex:
    """Fed with events; gives the changes since the last time, and the whole.

    Args:
        sources: how many event streams feed it, one for each data-parallel rank.
        offloaded_limit_blocks: beyond it the offloaded blocks stored longest ago are forgotten, since some
            connectors report what they store but never what they drop.
    """

    def __init__(
        self,
        instance: str,
        generation: int,
        hasher: BlockHasher,
        block_size_tokens: int,
        *,
        sources: int = 1,
        offloaded_limit_blocks: int = OFFLOADED_LIMIT_BLOCKS,
    ) -> None:
        self.instance = instance
        self.generation = generation
        self.sequence = 0
        """Of the last delta given out."""
        self.ignored: Counter[str] = Counter()
        """Stored blocks left out, by reason."""
        self._namer = BlockNamer(hasher, block_size_tokens)
        self._groups = AttentionGroups()
        self._blocks: dict[EngineHash, _Block] = {}
        self._left_out: dict[EngineHash, dict[Place, int]] = {}
        """On the accelerator, but without a name: known, so that their children are no sign of loss."""
        self._accelerator = HeldBlocks()
        self._offloaded = HeldBlocks()
        self._offloaded_order: dict[EngineHash, None] = {}
        self._offloaded_limit = offloaded_limit_blocks
        self._cleared = False
        self._sources = range(sources)
        self._holes = set(self._sources)
        self._complete_before: bool = True

    def __len__(self) -> int:
        """Blocks on the accelerator."""
        return len(self._accelerator)

    @property
    def offloaded(self) -> int:
        """Blocks in host memory or on disk."""
        return len(self._offloaded)

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing: the fleet's difference between an exact and a degraded index.

        A source has a hole from its start, and again from `lost` (a gap that no replay closed, a batch that
        could not be decoded) or from a block on the accelerator whose parent was never reported. The hole
        closes by `whole` (all that its engine ever published was taken in) or by AllBlocksCleared, after which
        what was missed does not matter. A new engine process begins with holes until its beginning was seen.
        What is left out on purpose (another block size, images, a salt, windowed attention) is no hole.
        """
        return not self._holes

    def lost(self, source: int) -> None:
        """Something that this source published was not taken in."""
        self._holes.add(source)

    def whole(self, source: int) -> None:
        """Everything that this source has published was taken in, from its first message."""
        self._holes.discard(source)

    def apply(self, batch: EventBatch, source: int = 0) -> None:
        """Take in one batch of events."""
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event, place_of(event, source, batch.rank))
            elif isinstance(event, BlockRemoved):
                self._remove(event, place_of(event, source, batch.rank))
            else:
                self.forget(source, batch.rank)
                if all(place.source != source for place in self._places()):
                    self.whole(source)

    def forget(self, source: int, rank: int | None = None) -> None:
        """Drop what a source reported, or what it reported of one rank."""

        def stays(place: Place) -> bool:
            return place.source != source or (rank is not None and place.rank != rank)

        if not (self._blocks or self._left_out):
            return
        if not any(map(stays, self._places())):
            self._clear()
            return
        for engine_hash, block in list(self._blocks.items()):
            self._keep(engine_hash, block, stays)
        for engine_hash, copies in list(self._left_out.items()):
            self._left_out[engine_hash] = kept = {p: n for p, n in copies.items() if stays(p)}
            if not kept:
                del self._left_out[engine_hash]

    def restart(self, generation: int) -> None:
        """Begin anew for another engine process: no blocks, and deltas numbered from 1."""
        self._clear()
        self._cleared = False
        self._groups = AttentionGroups()
        self._holes = set(self._sources)
        self._complete_before = True
        self.generation = generation
        self.sequence = 0

    def deltas(self, *, heartbeat: bool = False) -> list[KvDelta]:
        """The net changes since the last call, in pieces of at most `MAX_DELTA_BLOCKS` blocks of each kind.

        Args:
            heartbeat: give an empty delta when nothing changed, so that a reader that missed the last one
                finds out.
        """
        kinds = (*self._accelerator.changes(), *self._offloaded.changes())
        cleared, complete = self._cleared, self.complete
        changed = any(kinds) or cleared or complete != self._complete_before
        self._cleared, self._complete_before = False, complete
        if not (changed or heartbeat):
            return []
        deltas: list[KvDelta] = []
        for start in range(0, max(1, *map(len, kinds)), MAX_DELTA_BLOCKS):
            self.sequence += 1
            pieces = [b"".join(kind[start : start + MAX_DELTA_BLOCKS]) for kind in kinds]
            deltas.append(
                KvDelta(
                    instance=self.instance,
                    generation=self.generation,
                    sequence=self.sequence,
                    stored=pieces[0],
                    removed=pieces[1],
                    stored_offloaded=pieces[2],
                    removed_offloaded=pieces[3],
                    cleared=cleared and start == 0,
                    complete=complete,
                )
            )
        return deltas

    def snapshot(self) -> KvSnapshot:
        """All blocks as of the last delta given out; take the pending deltas first."""
        return KvSnapshot(
            instance=self.instance,
            generation=self.generation,
            sequence=self.sequence,
            blocks=self._accelerator.packed(),
            offloaded=self._offloaded.packed(),
            complete=self.complete,
        )

    # -- events

    def _store(self, event: BlockStored, place: Place) -> None:
        reason = self._unusable(event, place)
        if reason:
            self.ignored[reason] += len(event.block_hashes)
        elif place.offloaded:
            self._store_offloaded(event, place)
        elif not self._reported_again(event, place):
            self._store_on_accelerator(event, place)

    def _unusable(self, event: BlockStored, place: Place) -> str:
        if not self._groups.are_evidence(event, place.group):
            return "attention_kind"
        if event.token_ids and event.block_size != self._namer.block_size_tokens:
            return "block_size"
        self._groups.require(place)
        return ""

    def _reported_again(self, event: BlockStored, place: Place) -> bool:
        """Whether these blocks are only announced once more.

        vLLM's full report mode announces a reused prefix from its root as if it were stored, and only one
        removal will follow. A real second copy of a whole prompt looks the same, but is rare: the engine
        reuses what it has. It then goes a little too early.
        """
        return event.parent_block_hash is None and all(
            place in self._copies(engine_hash) for engine_hash in event.block_hashes
        )

    def _store_offloaded(self, event: BlockStored, place: Place) -> None:
        for engine_hash in event.block_hashes:
            block = self._blocks.get(engine_hash)
            if block is None:
                self.ignored["offloaded_unknown"] += 1
                continue
            self._add_copy(block, place)
            self._offloaded_order.pop(engine_hash, None)
            self._offloaded_order[engine_hash] = None
        while len(self._offloaded_order) > self._offloaded_limit:
            oldest = next(iter(self._offloaded_order))
            self._keep(oldest, self._blocks[oldest], lambda copy: not copy.offloaded)

    def _store_on_accelerator(self, event: BlockStored, place: Place) -> None:
        parent = self._parent_name(event)
        for position, engine_hash in enumerate(event.block_hashes):
            block = self._blocks.get(engine_hash)
            name = block.own if block else self._namer.name(event, position, parent)
            if isinstance(name, bytes):
                if block is None:
                    block = self._blocks[engine_hash] = _Block(name, self._left_out.pop(engine_hash, {}))
                self._add_copy(block, place)
                parent = name
                continue
            self.ignored[name] += 1
            if name == "unknown_parent":
                self.lost(place.source)
            copies = self._left_out.setdefault(engine_hash, {})
            copies[place] = copies.get(place, 0) + 1
            parent = "left_out_parent"

    def _parent_name(self, event: BlockStored) -> bytes | str:
        if event.parent_block_hash is None:
            return b""
        parent = self._blocks.get(event.parent_block_hash)
        if parent is not None:
            return parent.own
        return "left_out_parent" if event.parent_block_hash in self._left_out else "unknown_parent"

    def _remove(self, event: BlockRemoved, place: Place) -> None:
        for engine_hash in event.block_hashes:
            copies = self._copies(engine_hash)
            if place not in copies:
                continue
            copies[place] -= 1
            if copies[place]:
                continue
            del copies[place]
            block = self._blocks.get(engine_hash)
            if block is not None and copies is block.copies:
                self._settle(engine_hash, block, place.offloaded)
            elif not copies:
                del self._left_out[engine_hash]

    # -- copies

    def _copies(self, engine_hash: EngineHash) -> dict[Place, int]:
        block = self._blocks.get(engine_hash)
        return block.copies if block else self._left_out.get(engine_hash, {})

    def _places(self) -> Iterator[Place]:
        return chain.from_iterable(chain((b.copies for b in self._blocks.values()), self._left_out.values()))

    def _add_copy(self, block: _Block, place: Place) -> None:
        block.copies[place] = block.copies.get(place, 0) + 1
        self._publish(block, place.offloaded)

    def _keep(self, engine_hash: EngineHash, block: _Block, stays: Callable[[Place], bool]) -> None:
        block.copies = {place: count for place, count in block.copies.items() if stays(place)}
        for offloaded in (False, True):
            self._settle(engine_hash, block, offloaded)

    def _settle(self, engine_hash: EngineHash, block: _Block, offloaded: bool) -> None:
        """After copies in one kind of memory went."""
        self._publish(block, offloaded)
        if offloaded and not any(place.offloaded for place in block.copies):
            self._offloaded_order.pop(engine_hash, None)
        if not block.copies:
            self._blocks.pop(engine_hash, None)

    def _publish(self, block: _Block, offloaded: bool) -> None:
        """Bring what is given out of a block to where its copies lie."""
        holds = self._groups.hold(block.copies, offloaded)
        if offloaded:
            self._offloaded.change(block.own, block.offloaded, holds)
            block.offloaded = holds
        else:
            self._accelerator.change(block.own, block.on_accelerator, holds)
            block.on_accelerator = holds

    def _clear(self) -> None:
        self._blocks.clear()
        self._left_out.clear()
        self._offloaded_order.clear()
        self._accelerator.clear()
        self._offloaded.clear()
        self._cleared = True
