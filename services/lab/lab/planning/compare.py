"""All policies on the same work, seed by seed."""

from collections.abc import Callable
from typing import Any

import msgspec

from lab.planning.figures import Figures, figures, mean
from lab.planning.offered import offered
from lab.planning.simulate import POLICIES, simulate
from lab.planning.world import World
from lab.sim.parallel import Watch, run_all


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared."""

    steps: int
    seeds: int
    warm_up_steps: int
    weekend_dip: float = 0.0

    @property
    def total_steps(self) -> int:
        """Of all runs."""
        return self.steps * self.seeds * len(POLICIES)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """By policy, in their order."""

    means: dict[str, Figures]
    by_seed: dict[str, list[Figures]]


def compare(asked: Comparison, watch: Watch, processes: int | None = None) -> Compared:
    """Simulate every policy with every seed.

    Args:
        asked: how long, how often, and what for.
        watch: told how many steps are over, of all runs.
        processes: how many at once; as many as there are cores if None.
    """
    world = World(warm_up_steps=asked.warm_up_steps)

    def run(task: tuple[str, int], progressed: Callable[[int], Any]) -> Figures:
        policy, seed = task
        work = offered(world, asked.steps, seed, asked.weekend_dip)
        return figures(world, simulate(world, work, policy, progressed))

    # The plans take longest: begun first, they do not end last and alone.
    tasks = [(policy, seed) for policy in reversed(POLICIES) for seed in range(asked.seeds)]
    found = run_all(run, tasks, watch, processes)
    by_seed = {policy: [found[policy, seed] for seed in range(asked.seeds)] for policy in POLICIES}
    return Compared(means={policy: mean(ones) for policy, ones in by_seed.items()}, by_seed=by_seed)
