"""Which instances hold which prefix blocks. Pure.

A block's holders are the bits of one Python int, so one lookup per block answers for all instances at once.
Only what is contiguous from the first block counts as a prefix.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PrefixIndex:
    """Block hash -> set of instances, as a bit set."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._blocks: dict[str, set[int]] = {}
        self._bit: dict[str, int] = {}
        self._free_bits: list[int] = []

    def __len__(self) -> int:
        """Distinct blocks held anywhere."""
        return len(self._holders)

    def blocks_of(self, instance: str) -> int:
        """Blocks an instance holds."""
        return len(self._blocks.get(instance, ()))

    def store(self, instance: str, hashes: Iterable[int]) -> None:
        """The instance holds these blocks now."""
        bit = self._bit_of(instance)
        held = self._blocks[instance]
        holders = self._holders
        for block in hashes:
            holders[block] = holders.get(block, 0) | bit
            held.add(block)

    def remove(self, instance: str, hashes: Iterable[int]) -> None:
        """The instance evicted these blocks; those it did not hold are ignored."""
        held = self._blocks.get(instance)
        if held is None:
            return
        bit = self._bit[instance]
        for block in hashes:
            if block in held:
                held.remove(block)
                self._take_bit(block, bit)

    def drop(self, instance: str) -> None:
        """Forget everything about an instance."""
        held = self._blocks.pop(instance, None)
        if held is None:
            return
        bit = self._bit.pop(instance)
        for block in held:
            self._take_bit(block, bit)
        self._free_bits.append(bit)

    def replace(self, instance: str, hashes: Iterable[int]) -> None:
        """The instance holds exactly these blocks (a snapshot)."""
        self.drop(instance)
        self.store(instance, hashes)

    def match(self, hashes: Sequence[int]) -> dict[str, int]:
        """For each instance, how many of the leading blocks it holds. Instances with none are left out."""
        matched: dict[str, int] = {}
        present = -1
        depth = 0
        for block in hashes:
            still = present & self._holders.get(block, 0)
            if still != present and depth:
                self._record(matched, present & ~still, depth)
            if not still:
                return matched
            present = still
            depth += 1
        if depth:
            self._record(matched, present, depth)
        return matched

    def _record(self, matched: dict[str, int], bits: int, depth: int) -> None:
        for instance, bit in self._bit.items():
            if bits & bit:
                matched[instance] = depth

    def _bit_of(self, instance: str) -> int:
        bit = self._bit.get(instance)
        if bit is None:
            bit = self._free_bits.pop() if self._free_bits else 1 << len(self._bit)
            self._bit[instance] = bit
            self._blocks[instance] = set()
        return bit

    def _take_bit(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


class AssumedCache:
    """What an engine without KV events is assumed to hold: an LRU of what was routed to it."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def routed(self, hashes: Sequence[int]) -> list[int]:
        """A prompt with these blocks went there. Returns the blocks assumed evicted for it."""
        for block in reversed(hashes):  # leaves first: a chain's root is evicted last
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        evicted: list[int] = []
        while len(self._blocks) > self._capacity:
            evicted.append(self._blocks.popitem(last=False)[0])
        return evicted
