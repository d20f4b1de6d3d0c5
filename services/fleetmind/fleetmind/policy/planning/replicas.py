"""Whole replicas out of the linear program's fractions, always within the limits. Pure.

Every fraction is rounded up where its site has room, those that bear most work first. Where it has not, the pool stays at the
whole number below, and the program is solved again without the room that it asked for, so that the work goes elsewhere or is
said to be unserved. Each round fixes at least one pool, so it ends.
"""

import numpy as np
import numpy.typing as npt

from fleetmind.policy.planning.program import Counts, Floats, Program

NOTHING = 1e-6
"""A fraction so small is an error of arithmetic."""


def whole_replicas(program: Program) -> Counts:
    """How many replicas every pool should have, by itself: what it had before counts only as what it costs to change."""
    most = most_replicas(program)
    least = least_replicas(program, most)
    while True:
        replicas, refused = rounded(program, program.solve(least, most).replicas)
        if not refused.any():
            return replicas
        most = np.where(refused, replicas, most)


def rounded(program: Program, replicas: Floats) -> tuple[Counts, npt.NDArray[np.bool_]]:
    """Rounded up within the limits; and which pools had to be rounded down.

    Args:
        program: whose limits count.
        replicas: by pool, within the limits as fractions.
    """
    whole = np.floor(replicas + NOTHING).astype(np.int64)
    refused = np.zeros(len(whole), dtype=np.bool_)
    fractions = replicas - whole
    for place in np.argsort(-fractions * program.bears, kind="stable").tolist():
        if fractions[place] <= NOTHING:
            continue
        whole[place] += 1
        if not program.fits(whole):
            whole[place] -= 1
            refused[place] = True
    return whole, refused


def most_replicas(program: Program) -> Counts:
    """By pool, if it had its site for itself."""
    most = program.site_gpus[program.site_of] // np.maximum(program.gpus, NOTHING)
    needs_memory = program.memory_gib > 0
    of_memory = program.site_memory_gib[program.site_of] // np.where(needs_memory, program.memory_gib, 1.0)
    most = np.where(needs_memory, np.minimum(most, of_memory), most)
    allowed = [np.inf if pool.maximum is None else pool.maximum for pool in program.pools]
    return np.minimum(most, allowed).astype(np.int64)


def least_replicas(program: Program, most: Counts) -> Counts:
    """By pool, what it must have, as far as limits allow: whoever comes first gets its minimum first."""
    least = np.zeros(len(program.pools), dtype=np.int64)
    for place, pool in enumerate(program.pools):
        for _ in range(min(pool.minimum, int(most[place]))):
            least[place] += 1
            if not program.fits(least):
                least[place] -= 1
                break
    return least
