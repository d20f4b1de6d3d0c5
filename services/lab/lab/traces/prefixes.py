"""Block ids that stand for whole prefixes, from ids that stand for a block's content alone.

Ids are written out one prompt after the other: prompt `i` has `ids[bounds[i]:bounds[i + 1]]`, at least one.
"""

import numpy as np

from lab.traces.columns import Integers


def chained(ids: Integers, bounds: Integers) -> bool:
    """Whether each id always follows the same id (or always begins a prompt), so that it tells its prefix."""
    before = np.empty_like(ids)
    before[1:] = ids[:-1]
    before[bounds[:-1]] = -1
    order = np.argsort(ids, kind="stable")
    ids, before = ids[order], before[order]
    return not np.any((ids[1:] == ids[:-1]) & (before[1:] != before[:-1]))


def chained_by_prefix(ids: Integers, bounds: Integers) -> Integers:
    """New ids, equal exactly where the old ones and all before them in the prompt are equal.

    One step for each position in a prompt, over all prompts that reach it. The old ids times the number of
    prompts must fit in 64 bits.
    """
    lengths = np.diff(bounds)
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = bounds[:-1][longest_first], lengths[longest_first]
    new = np.empty_like(ids)
    width = int(ids.max(initial=0)) + 1
    parents = np.zeros(len(starts), dtype=np.int64)
    used = 0
    for position in range(int(lengths.max(initial=0))):
        reaching = int(np.searchsorted(-lengths, -position, side="left"))
        places = starts[:reaching] + position
        prefixes, parents = np.unique(parents[:reaching] * width + ids[places], return_inverse=True)
        new[places] = parents + used
        used += len(prefixes)
    return new
