"""llm-d's approximate prefix producer: what was routed where, believed and never confirmed."""

from collections import OrderedDict
from collections.abc import Sequence

from lab.sim.api import Arrival
from tokenfleet.contracts.fleet import InstanceRecord

MIN_BLOCK_TOKENS = 64
MAX_BLOCKS_TO_MATCH = 2_048


class ApproximatePrefixes:
    """For each instance an LRU of prompt blocks.

    Definition: llm-d-router ebab687, `approximateprefix` with auto-tuning on (its default): the engine's block size
    but at least 64 tokens, at most 2,048 blocks of a prompt, and as many blocks for each instance as
    the engine says it has, whatever their sizes (so with 16-token blocks it believes in four times the cache there
    is). A prompt's blocks are added from the first to the last, so the first is the first to be evicted. An instance's
    match counts the blocks it holds up to the first block that nobody holds.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        """Block -> the bits of those who hold it."""
        self._bits: dict[str, int] = {}
        self._names: dict[int, str] = {}
        """Of each bit in use."""
        self._free_bits: list[int] = []
        self._lru: dict[str, OrderedDict[int, None]] = {}
        self._capacity: dict[str, int] = {}

    def add_instance(self, record: InstanceRecord) -> None:
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._bits)
        self._bits[record.instance] = bit
        self._names[bit] = record.instance
        self._lru[record.instance] = OrderedDict()
        self._capacity[record.instance] = record.profile.kv_capacity_tokens // record.block_size_tokens

    def drop_instance(self, instance: str) -> None:
        bit = self._bits.pop(instance)
        for block in self._lru.pop(instance):
            self._take(block, bit)
        del self._names[bit], self._capacity[instance]
        self._free_bits.append(bit)

    def routed(self, blocks: Sequence[int], instance: str) -> None:
        """A prompt with these blocks went there."""
        bit, lru, holders = self._bits[instance], self._lru[instance], self._holders
        for block in blocks:
            if block in lru:
                lru.move_to_end(block)
            else:
                lru[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(lru) > self._capacity[instance]:
            self._take(lru.popitem(last=False)[0], bit)

    def matches(self, blocks: Sequence[int]) -> dict[str, int]:
        """How many of these blocks each instance holds; those with none are left out."""
        found: dict[str, int] = {}
        held, length = 0, 0
        for block in blocks:
            mask = self._holders.get(block, 0)
            if mask != held:
                self._count(found, held, length)
                held, length = mask, 0
            if not mask:
                return found
            length += 1
        self._count(found, held, length)
        return found

    def _count(self, found: dict[str, int], mask: int, blocks: int) -> None:
        """Add a run of blocks to what its holders have."""
        while mask:
            bit = mask & -mask
            mask ^= bit
            name = self._names[bit]
            found[name] = found.get(name, 0) + blocks

    def _take(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


def producer_blocks(arrival: Arrival) -> Sequence[int]:
    """A prompt's blocks as llm-d cuts them: engine blocks joined until they have at least 64 tokens."""
    joined = -(-MIN_BLOCK_TOKENS // arrival.spec.block_size_tokens)
    return arrival.blocks[joined - 1 :: joined][:MAX_BLOCKS_TO_MATCH]
