"""Who serves what in one step: at home first, then wherever there is room and it may run.

What is not borne in the step in which it was asked for waits for the next one, and is served before what comes then.
What is not borne there either is late, and is not served any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.planning.world import World


@dataclass(slots=True)
class Served:
    """Of one step."""

    by_pool: list[float]
    away: float
    """Of it, away from its entry."""
    waiting: list[float]
    """By way: of what was asked for in this step, what waits for the next."""
    late: list[float]
    """By way: of what was asked for in the step before, what nobody served."""


@dataclass(slots=True)
class Serving:
    """Goes from step to step."""

    world: World
    _waiting: list[float] = field(default_factory=list[float])

    def step(self, asked: Sequence[float], ready: Sequence[int]) -> Served:
        """Serve what waited, then what is asked for.

        Args:
            asked: by way.
            ready: replicas by pool.
        """
        room = [replicas * self.world.bears for replicas in ready]
        whole = list(room)
        late = list(self._waiting) or [0.0] * len(self.world.ways)
        waiting = list(asked)
        away = self._fill(late, room) + self._fill(waiting, room)
        self._waiting = waiting
        by_pool = [before - after for before, after in zip(whole, room, strict=True)]
        return Served(by_pool, away, list(waiting), late)

    def _fill(self, work: list[float], room: list[float]) -> float:
        """Takes what is served from both; returns how much of it is served away.

        Whoever may go to fewer sites chooses first, and goes where there is most room.
        """
        ways = self.world.ways
        for way, bound in enumerate(ways):
            _move(work, way, room, bound.home)
        total = 0.0
        for way in sorted(range(len(ways)), key=lambda way: len(ways[way].away)):
            for pool in sorted(ways[way].away, key=lambda pool: -room[pool]):
                total += _move(work, way, room, pool)
        return total


def _move(work: list[float], way: int, room: list[float], pool: int) -> float:
    served = min(work[way], room[pool])
    work[way] -= served
    room[pool] -= served
    return served
