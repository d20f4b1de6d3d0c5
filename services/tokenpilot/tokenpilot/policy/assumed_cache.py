"""What engines that do not tell of their caches are taken to hold. Pure."""

from collections.abc import Sequence
from itertools import islice

from tokenfleet.contracts.fleet import InstanceRecord
from tokenpilot.policy.prefix_index import PrefixIndex


class AssumedCaches:
    """Of all engines without KV events: what was routed to them, kept in an index as if they had told of it."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._caches: dict[str, AssumedCache] = {}

    def routed(self, record: InstanceRecord, hashes: Sequence[int]) -> None:
        """A prompt with these blocks went to an engine."""
        if record.kv_events or not hashes:
            return
        cache = self._caches.get(record.instance)
        if cache is None:
            capacity = record.profile.kv_capacity_tokens // record.block_size_tokens
            cache = self._caches[record.instance] = AssumedCache(capacity)
        self._index.store(record.instance, hashes)
        self._index.remove(record.instance, cache.routed(hashes))

    def left(self, instance: str) -> None:
        """An engine is gone; the index drops it by itself."""
        self._caches.pop(instance, None)


class AssumedCache:
    """What an engine without KV events is assumed to hold: an LRU of what was routed to it."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._blocks: dict[int, int] = {}
        """Least recently used first. Each block's value is its key: the object that the index has as well."""

    def __len__(self) -> int:
        return len(self._blocks)

    def routed(self, hashes: Sequence[int]) -> list[int]:
        """A prompt with these blocks went there. Returns the blocks assumed evicted for it."""
        blocks = self._blocks
        for block in reversed(hashes):  # leaves first: a chain's root is evicted last
            known = blocks.pop(block, block)
            blocks[known] = known
        evicted = list(islice(blocks, max(0, len(blocks) - self._capacity)))
        for block in evicted:
            del blocks[block]
        return evicted
