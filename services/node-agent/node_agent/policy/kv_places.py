"""Where copies of blocks lie, and which of them show that a prefix can be reused."""

from collections.abc import Iterable
from typing import NamedTuple

from node_agent.policy.kv_events import BlockRemoved, BlockStored

ACCELERATOR = "GPU"
"""vLLM's and SGLang's word for the memory that attention reads, whatever the device; no medium means the same.

Other words seen: CPU, STORAGE and (Mooncake, LMCache) cpu from vLLM, CPU_PINNED, CPU_TIER1, CPU_TIER2 and DISK
from SGLang. All of them, and words not known here, count as offloaded.
"""

FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""vLLM's kinds of KV groups whose blocks last as long as the prefix. Windowed, chunked and Mamba groups drop or
skip blocks of a prefix that is still there, and keep some of one that is not."""


class Place(NamedTuple):
    """Where a copy of a block lies."""

    source: int
    """Which of the engine's event streams says so."""
    rank: int
    medium: str
    group: int
    """Of KV-cache layers: hybrid models have several, and each stores the block by itself."""

    @property
    def offloaded(self) -> bool:
        return self.medium != ACCELERATOR


def place_of(event: BlockStored | BlockRemoved, source: int, rank: int) -> Place:
    """Where an event's blocks lie."""
    return Place(source, rank, (event.medium or ACCELERATOR).upper(), event.group_idx or 0)


class AttentionGroups:
    """What is known of an engine's KV groups. Kinds come with some events only, and are remembered."""

    def __init__(self) -> None:
        self._partial: set[int] = set()
        self._required: tuple[set[int], set[int]] = (set(), set())
        """Groups seen on the accelerator, and offloaded."""

    def are_evidence(self, event: BlockStored, group: int) -> bool:
        """Whether a group's blocks show that a whole prefix is there."""
        kind, window = event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window
        if window or (kind is not None and kind not in FULL_ATTENTION):
            self._partial.add(group)
            for required in self._required:
                required.discard(group)
        return group not in self._partial

    def require(self, place: Place) -> None:
        """Blocks are stored for this group too: from now on a block is held where all such groups hold it."""
        self._required[place.offloaded].add(place.group)

    def hold(self, places: Iterable[Place], offloaded: bool) -> bool:
        """Whether, of a block in these places, one rank has the part of every group."""
        required = self._required[offloaded]
        if len(required) == 1:
            return any(place.offloaded == offloaded and place.group in required for place in places)
        groups: dict[tuple[int, int], set[int]] = {}
        for place in places:
            if place.offloaded == offloaded:
                groups.setdefault((place.source, place.rank), set()).add(place.group)
        return any(present >= required for present in groups.values())
