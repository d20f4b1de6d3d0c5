"""Replicas of all pools: begun, ready after their warm-up, stopped, and never more than their site has GPUs for."""

from collections.abc import Sequence

from lab.planning.world import STEP_S, World


class Fleet:
    """Counts by pool, in the order of `World.pools`.

    Args:
        world: its pools and limits.
        ready: at the begin; cut to what the sites have room for.
    """

    def __init__(self, world: World, ready: Sequence[int]) -> None:
        self._world = world
        self.ready = [0] * len(world.pools)
        self._ready_at: list[list[int]] = [[] for _ in world.pools]
        """Of those that are warming, the oldest first: the step at which each is ready."""
        self.scale(ready, -world.warm_up_steps)
        self.begin(0)

    @property
    def warming(self) -> list[int]:
        return [len(steps) for steps in self._ready_at]

    @property
    def running(self) -> list[int]:
        """What takes GPUs: ready and warming."""
        return [ready + warming for ready, warming in zip(self.ready, self.warming, strict=True)]

    def warm_in_s(self, pool: int, step: int) -> float:
        """Until all that are warming are ready."""
        return (self._ready_at[pool][-1] - step) * STEP_S if self._ready_at[pool] else 0.0

    def begin(self, step: int) -> None:
        """A step begins: whatever is warm by now is ready."""
        for pool, steps in enumerate(self._ready_at):
            warm = sum(at <= step for at in steps)
            self.ready[pool] += warm
            del steps[:warm]

    def scale(self, wanted: Sequence[int], step: int) -> tuple[int, int]:
        """Stop what is too much, the youngest first, then begin what is missing and fits.

        Where a site has too few GPUs its pools take turns. A stopped replica leaves at once, one that is begun takes its
        GPUs at once.

        Returns:
            How many were begun and how many stopped.
        """
        begun = stopped = 0
        for pool, number in enumerate(wanted):
            while self.running[pool] > number:
                self._stop(pool)
                stopped += 1
        while missing := [pool for pool, number in enumerate(wanted) if self._may_begin(pool, number)]:
            for pool in missing:
                if self._may_begin(pool, wanted[pool]):
                    self._ready_at[pool].append(step + self._world.warm_up_steps)
                    begun += 1
        return begun, stopped

    def gpus(self, site: str) -> int:
        """Taken at a site."""
        pools = zip(self._world.pools, self.running, strict=True)
        return sum(running * model.gpus for (at, model), running in pools if at == site)

    def _may_begin(self, pool: int, number: int) -> bool:
        site, model = self._world.pools[pool]
        return self.running[pool] < number and self.gpus(site) + model.gpus <= self._world.site_gpus

    def _stop(self, pool: int) -> None:
        if self._ready_at[pool]:
            self._ready_at[pool].pop()
        else:
            self.ready[pool] -= 1
