"""Which prefixes a site has cached, told by a sample of their blocks. Pure.

Hashes are chained: who holds a block holds, but for evictions, all before it. So it is enough to tell of one block in
32, and to say how deep a prompt is known by the last of its blocks that is told of.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from tokenfleet.contracts.sites import ONE_IN

MOST_FINGERPRINTS = 8_192
"""Of a pool: 32 KiB. Beyond that fewer blocks are told of."""


def fingerprint(block: int) -> int:
    """Four bytes for a block's hash."""
    return (block ^ (block >> 32)) & 0xFFFF_FFFF


def pack_prefixes(held: Sequence[Iterable[int]]) -> tuple[tuple[bytes, ...], int]:
    """`(fingerprints by instance, one block in how many is told of)`.

    Args:
        held: by instance, the cached blocks whose hash is divisible by `ONE_IN`.
    """
    blocks = [list(one) for one in held]
    one_in = ONE_IN
    while sum(len(one) for one in blocks) > MOST_FINGERPRINTS:
        one_in *= 2
        blocks = [[block for block in one if block % one_in == 0] for one in blocks]
    packed = tuple(np.array([fingerprint(block) for block in one], dtype="<u4").tobytes() for one in blocks)
    return packed, one_in


Told = tuple[int, int]
"""A block that summaries may tell of: the number of blocks up to it, and its fingerprint."""


class KnownPrefixes:
    """What a site's summary says of its caches."""

    def __init__(self, prefixes: Sequence[bytes] = (), one_in: int = ONE_IN) -> None:
        self.one_in = one_in
        self._holders: dict[int, int] = {}
        """Bits of instances by fingerprint."""
        holders = self._holders
        for position, packed in enumerate(prefixes):
            bit = 1 << position
            for one in np.frombuffer(packed, dtype="<u4").tolist():
                holders[one] = holders.get(one, 0) | bit

    def matched(self, told: Sequence[Told]) -> list[tuple[int, int]]:
        """`(bits of instances, leading blocks of a prompt that they are expected to have cached at least)`, each a
        part of the instances before it.

        Args:
            told: of the prompt's blocks, as `told_blocks` gives them for one block in `one_in`.
        """
        holders = self._holders
        matched: list[tuple[int, int]] = []
        if not holders:
            return matched
        present, blocks = -1, 0
        beyond = self.one_in // 2  # the chain ends between a block and the next one told of
        for depth, mark in told:
            still = present & holders.get(mark, 0)
            if still != present:
                if blocks:
                    matched.append((present, blocks))
                if not still:
                    return matched
                present = still
            blocks = depth + beyond
        if blocks:
            matched.append((present, blocks))
        return matched


def told_blocks(blocks: Sequence[int], one_in: int = ONE_IN) -> list[Told]:
    """Of a prompt's blocks, those that summaries may tell of."""
    return [(depth, fingerprint(block)) for depth, block in enumerate(blocks, start=1) if block % one_in == 0]
