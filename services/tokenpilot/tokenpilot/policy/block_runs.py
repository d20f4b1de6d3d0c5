"""The blocks of one storage tier and who holds them, as runs. Pure.

A run is a stretch of blocks that were stored one after another and have the same holders, which is what blocks
of one prompt mostly are. Comparing a prompt with a run is comparing bytes, so a lookup touches memory per run and
not per block; and a holder set is kept per run and not per block. A run is cut wherever that stops being true:
an instance stores or removes a part of it, and runs that a prompt shows to follow each other are joined when it is
looked up. Nothing depends on what is in one run but the cost.

Every block is a key of one of many small dicts, so none ever stops the caller for long while it grows.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

BYTES = 8
"""Of a block hash, packed."""
MAX_RUN_BLOCKS = 512
"""Bounds what one cut costs."""
MAX_MOVED_BLOCKS = 64
"""By joining two runs, about 0.4 us each, once; each later lookup is spared one run, 1 to 2 us."""
SHARDS = 1024
"""10 million blocks are 10,000 in each, which grows or is swept in less than a millisecond."""
FREED_VISITS = 4
"""To free a block takes as long as so many visits."""
MAX_SHARED_SETS = 50_000
"""Holder sets of a thousand instances, 250 bytes each with their place in the table."""
_SHARD_MASK = SHARDS - 1

Span = tuple[int, int]
"""Holders as a bit set, and the position up to which they hold every block."""


class _Run(msgspec.Struct, gc=False, eq=False):
    """Holds numbers and bytes only, so the cyclic garbage collector, which would visit millions, need not know it."""

    holders: int
    blocks: bytes


class BlockRuns:
    """Block hash -> bit set of holders. Holders are given as bits; which of them still count, as a mask."""

    def __init__(self) -> None:
        self._shards: list[dict[int, _Run]] = [{} for _ in range(SHARDS)]
        self._size = 0
        self._sets: dict[int, int] = {}
        """Holder sets in use of late, so that equal ones are one object; without it runs of a block each cost twice
        as much."""
        self._unswept = 0
        """Shards that the sweep still has to visit."""

    def __len__(self) -> int:
        """Distinct blocks, those of holders that no longer count included until they are swept."""
        return self._size

    def spans(self, hashes: Sequence[int]) -> Iterator[Span]:
        """Who holds these blocks, from first to last; a block that nobody holds is a span of its own."""
        packed = array("Q", hashes).tobytes()
        before: _Run | None = None
        at = 0
        while at < len(packed):
            block = hashes[at // BYTES]
            run = self._shards[block & _SHARD_MASK].get(block)
            if run is None:
                before = None
                at += BYTES
                yield 0, at // BYTES
                continue
            length = _common(packed, at, run.blocks, start := _offset(run.blocks, block))
            whole = length == len(run.blocks)
            to_its_end = start + length == len(run.blocks)
            if whole and before is not None and before is not run and before.holders == run.holders:
                run = self._join(before, run)
            before = run if to_its_end else None
            at += length
            yield run.holders, at // BYTES

    def store(self, bit: int, live: int, hashes: Sequence[int]) -> int:
        """Add a holder. Returns how many of the blocks it did not hold before."""
        packed = array("Q", hashes).tobytes()
        at = stored = 0
        while at < len(packed):
            block = hashes[at // BYTES]
            run = self._shards[block & _SHARD_MASK].get(block)
            if run is None:
                length = self._insert(bit, hashes, packed, at)
                stored += length // BYTES
            else:
                start = _offset(run.blocks, block)
                length = _common(packed, at, run.blocks, start)
                if not run.holders & bit:
                    part = self._cut(run, start, start + length)
                    self._keep(part, part.holders & live | bit)
                    stored += length // BYTES
            at += length
        return stored

    def remove(self, bit: int, live: int, hashes: Sequence[int]) -> int:
        """Take a holder away. Returns how many of the blocks it held."""
        packed = array("Q", hashes).tobytes()
        backwards = array("Q", hashes[::-1]).tobytes()
        at = removed = 0
        while at < len(hashes):
            block = hashes[at]
            run = self._shards[block & _SHARD_MASK].get(block)
            if run is None or not run.holders & bit:
                at += 1
                continue
            # Neighbours leave together, in either direction: engines evict a prompt's last blocks first.
            start = _offset(run.blocks, block)
            end = start + _common(packed, at * BYTES, run.blocks, start)
            if end == start + BYTES:
                start = end - _common_before(backwards, len(packed) - at * BYTES, run.blocks, end)
            at += (end - start) // BYTES
            removed += (end - start) // BYTES
            part = self._cut(run, start, end)
            self._keep(part, part.holders & live & ~bit)
        return removed

    def begin_sweep(self) -> None:
        """The following calls of `sweep` visit all blocks once."""
        self._unswept = SHARDS if self._size else 0

    def sweep(self, gone: int, max_blocks: int) -> int:
        """Forget these holders, and free what only they hold.

        Returns how many visits of `max_blocks` were not needed: above 0, and all blocks have been visited. A block
        to be freed counts as several. The last shard and the last run may exceed the number.
        """
        while self._unswept and max_blocks > 0:
            shard = self._shards[self._unswept - 1]
            if shard:
                for run in {run for run in shard.values() if run.holders & gone}:
                    self._keep(run, run.holders & ~gone)
                    max_blocks -= FREED_VISITS * (1 if run.holders else len(run.blocks) // BYTES)
                    if max_blocks <= 0:
                        return 0  # and this shard is visited again: it may contain more of them
                max_blocks -= len(shard)
            self._unswept -= 1
        return max(0, max_blocks)

    def _insert(self, bit: int, hashes: Sequence[int], packed: bytes, at: int) -> int:
        """A run of the blocks from `at` on that nobody holds; its length in bytes."""
        run = _Run(bit, b"")
        shards = self._shards
        first = end = at // BYTES
        for block in islice(hashes, first, first + MAX_RUN_BLOCKS):
            shard = shards[block & _SHARD_MASK]
            if block in shard:
                break
            shard[block] = run
            end += 1
        run.blocks = packed[at : end * BYTES]
        self._size += end - first
        return end * BYTES - at

    def _keep(self, run: _Run, holders: int) -> None:
        """Leave a run to these holders; without any it goes."""
        if len(self._sets) == MAX_SHARED_SETS:
            self._sets.clear()
        run.holders = self._sets.setdefault(holders, holders)
        if not holders:
            shards = self._shards
            for block in memoryview(run.blocks).cast("Q").tolist():
                del shards[block & _SHARD_MASK][block]
            self._size -= len(run.blocks) // BYTES

    def _cut(self, run: _Run, start: int, end: int) -> _Run:
        """The part from byte `start` to `end` as a run of its own."""
        if end < len(run.blocks):
            run, _ = self._split(run, end)
        if start:
            _, run = self._split(run, start)
        return run

    def _split(self, run: _Run, at: int) -> tuple[_Run, _Run]:
        """Both parts; the shorter one moves to another object, as each of its blocks must be told."""
        head, tail = run.blocks[:at], run.blocks[at:]
        moved = _Run(run.holders, min(head, tail, key=len))
        for block in memoryview(moved.blocks).cast("Q"):
            self._shards[block & _SHARD_MASK][block] = moved
        if moved.blocks is head:
            run.blocks = tail
            return moved, run
        run.blocks = head
        return run, moved

    def _join(self, head: _Run, tail: _Run) -> _Run:
        """Both as one, which is one of the two, or just the tail if that would be too long or cost too much."""
        kept, moved = (head, tail) if len(head.blocks) > len(tail.blocks) else (tail, head)
        blocks = head.blocks + tail.blocks
        if len(moved.blocks) > MAX_MOVED_BLOCKS * BYTES or len(blocks) > MAX_RUN_BLOCKS * BYTES:
            return tail
        for block in memoryview(moved.blocks).cast("Q"):
            self._shards[block & _SHARD_MASK][block] = kept
        kept.blocks = blocks
        return kept


def _offset(blocks: bytes, block: int) -> int:
    """Where in a run's bytes a block that it contains starts."""
    packed = block.to_bytes(BYTES, sys.byteorder)
    offset = blocks.find(packed)
    while offset % BYTES:
        offset = blocks.find(packed, offset + 1)
    return offset


def _common(first: bytes, first_at: int, second: bytes, second_at: int) -> int:
    """How many bytes two sequences of blocks have in common from these places on; the first block, surely."""
    high = min(len(first) - first_at, len(second) - second_at)
    if first[first_at : first_at + high] == second[second_at : second_at + high]:
        return high
    low = BYTES
    while high - low > BYTES:
        middle = (low + high) // (2 * BYTES) * BYTES
        if first[first_at + low : first_at + middle] == second[second_at + low : second_at + middle]:
            low = middle
        else:
            high = middle
    return low


def _common_before(first: bytes, first_end: int, second: bytes, second_end: int) -> int:
    """How many bytes two sequences of blocks have in common before these places; the last block, surely."""
    high = min(first_end, second_end)
    low = BYTES
    while low < high:
        middle = (low + high + BYTES) // (2 * BYTES) * BYTES
        if first[first_end - middle : first_end] == second[second_end - middle : second_end]:
            low = middle
        else:
            high = middle - BYTES
    return low
