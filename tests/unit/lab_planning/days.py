"""Small days for the tests of the long loop's comparison."""

from functools import cache

from lab.planning.offered import Offered, offered
from lab.planning.simulate import Run, simulate
from lab.planning.world import World

WORLD = World()
STEPS = 180
"""Three hours: the plans take a second."""


@cache
def work(seed: int = 0) -> Offered:
    return offered(WORLD, STEPS, seed)


@cache
def run(policy: str, seed: int = 0) -> Run:
    return simulate(WORLD, work(seed), policy)
