"""Which instances hold which prefix blocks, in the accelerator's memory or offloaded from it. Pure.

The holders of a block are the bits of one Python int, so one look answers for all instances at once. Only what is
contiguous from the first block counts as a prefix.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tokenfleet.contracts.sites import ONE_IN
from tokenpilot.policy.block_runs import BlockRuns, Span
from tokenpilot.policy.lives import Lives, bit_rows

SWEEP_BLOCKS = 5_000
"""Visited in less than a millisecond, two when some are freed."""


class PrefixIndex:
    """Block hash (an unsigned 64-bit number) -> set of instances, in two tiers.

    Instances come and go without a visit to their blocks: `drop` ends an instance's claim on them at once, and
    `sweep` frees what nobody claims, some at a time.
    """

    def __init__(self) -> None:
        self._lives = Lives()
        self._accelerator = BlockRuns()
        self._offload = BlockRuns()
        self._held: dict[str, list[int]] = {}
        self._told: dict[str, tuple[set[int], set[int]]] = {}
        """Of each instance's blocks by tier, those that summaries for other sites may tell of."""
        self._sweeping = 0

    def __len__(self) -> int:
        """Distinct blocks in each tier, those of dropped instances included until they are swept."""
        return len(self._accelerator) + len(self._offload)

    def blocks_of(self, instance: str) -> int:
        """Blocks an instance holds, over both tiers."""
        return sum(self._held.get(instance, ()))

    def told_of(self, instance: str) -> set[int]:
        """The blocks an instance holds, in either tier, that summaries for other sites may tell of."""
        told = self._told.get(instance)
        return told[0] | told[1] if told else set()

    def store(self, instance: str, hashes: Iterable[int]) -> None:
        """The instance holds these blocks in its accelerator's memory now."""
        self._store(0, self._accelerator, instance, hashes)

    def remove(self, instance: str, hashes: Iterable[int]) -> None:
        """The instance evicted these blocks from there; those it did not hold are ignored."""
        self._remove(0, self._accelerator, instance, hashes)

    def store_offloaded(self, instance: str, hashes: Iterable[int]) -> None:
        """The instance holds these blocks in host memory or on disk now."""
        self._store(1, self._offload, instance, hashes)

    def remove_offloaded(self, instance: str, hashes: Iterable[int]) -> None:
        """The instance evicted these blocks from there; those it did not hold are ignored."""
        self._remove(1, self._offload, instance, hashes)

    def drop(self, instance: str) -> None:
        """Forget everything about an instance."""
        held = self._held.pop(instance, None)
        self._told.pop(instance, None)
        if held is not None:
            self._lives.end(instance, unused=not any(held))
            self.sweep(SWEEP_BLOCKS)  # so that an index that nobody sweeps does not grow for ever

    def replace(self, instance: str, hashes: Iterable[int], offloaded: Iterable[int] = ()) -> None:
        """The instance holds exactly these blocks (a snapshot)."""
        self.drop(instance)
        self.store(instance, hashes)
        self.store_offloaded(instance, offloaded)

    def sweep(self, max_blocks: int = SWEEP_BLOCKS) -> bool:
        """Visit some blocks and free those that only dropped instances held. Returns whether work is left."""
        lives = self._lives
        if not self._sweeping:
            if not lives.retired:
                return False
            self._sweeping = lives.retired
            self._accelerator.begin_sweep()
            self._offload.begin_sweep()
        max_blocks = self._accelerator.sweep(self._sweeping, max_blocks)
        if max_blocks:
            max_blocks = self._offload.sweep(self._sweeping, max_blocks)
        if max_blocks:
            lives.free(self._sweeping)
            self._sweeping = 0
        return lives.retired != 0

    def match(self, hashes: Sequence[int]) -> dict[str, int]:
        """For each instance, how many of the leading blocks it holds in either tier. Instances with none are left out."""
        matched: dict[str, int] = {}
        present = self._lives.live
        depth = 0
        for holders, end in self._spans(hashes):
            still = present & holders
            if still != present:
                if depth:
                    self._lives.write_depth(matched, present, still, depth)
                if not still:
                    return matched
                present = still
            depth = end
        if depth:
            self._lives.write_depth(matched, present, 0, depth)
        return matched

    def offloaded(self, hashes: Sequence[int], matched: Mapping[str, int]) -> dict[str, int]:
        """Of the blocks that `match` found, how many lie only in the offloaded tier. Instances with none are left out."""
        if not self._offload:
            return {}
        positions, live = self._lives.position, self._lives.live
        instances = [instance for instance, depth in matched.items() if depth and instance in positions]
        if not instances:
            return {}
        depths = np.array([matched[instance] for instance in instances])
        spans = list(self._accelerator.spans(hashes[: depths.max()]))
        held = bit_rows([holders & live for holders, _ in spans], live.bit_length())
        absent = 1 - held[:, [positions[instance] for instance in instances]]
        ends = np.array([end for _, end in spans])
        lengths = np.diff(ends, prepend=0)
        matched_of_span = np.clip(depths - (ends - lengths)[:, None], 0, lengths[:, None])
        counts = (matched_of_span * absent).sum(axis=0).tolist()
        return {instance: count for instance, count in zip(instances, counts, strict=True) if count}

    def _store(self, tier: int, runs: BlockRuns, instance: str, hashes: Iterable[int]) -> None:
        blocks = list(hashes)
        if blocks:
            bit = self._lives.bit(instance)
            held = self._held.setdefault(instance, [0, 0])
            held[tier] += runs.store(bit, self._lives.live, blocks)
            told = self._told.setdefault(instance, (set(), set()))
            told[tier].update([block for block in blocks if not block % ONE_IN])

    def _remove(self, tier: int, runs: BlockRuns, instance: str, hashes: Iterable[int]) -> None:
        held = self._held.get(instance)
        if held is not None:
            bit, blocks = self._lives.bit(instance), list(hashes)
            held[tier] -= runs.remove(bit, self._lives.live, blocks)
            self._told[instance][tier].difference_update(blocks)

    def _spans(self, hashes: Sequence[int]) -> Iterator[Span]:
        spans = self._accelerator.spans(hashes)
        return _either(spans, self._offload.spans(hashes)) if self._offload else spans


def _either(first: Iterator[Span], second: Iterator[Span]) -> Iterator[Span]:
    """Who holds the blocks in one tier or the other; both sequences of spans end at the same place."""
    end = first_end = second_end = 0
    first_holders = second_holders = 0
    while True:
        if first_end == end:
            span = next(first, None)
            if span is None:
                return
            first_holders, first_end = span
        if second_end == end:
            second_holders, second_end = next(second)
        end = min(first_end, second_end)
        yield first_holders | second_holders, end
