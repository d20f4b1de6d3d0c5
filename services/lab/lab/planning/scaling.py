"""The ways to scale that are compared: each says how many replicas every pool should have, step by step."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lab.planning.fleet import Fleet
from lab.planning.offered import Offered
from lab.planning.world import DAY_STEPS, STEP_S, World

HOUR_STEPS = round(3_600 / STEP_S)
TOLERANCE = 0.1
"""Of Kubernetes' horizontal autoscaler: a load this close to what the replicas bear changes nothing."""
STABILISATION_S = 300.0
"""Of the same: the highest number wanted in this time is kept, by default five minutes."""
SPARE = 0.2
"""What operators leave free who know that new replicas come late: without it, a plan that keeps some free for what its
forecasts may be off by would be praised for foresight where it only has more replicas."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The step that is over."""

    step: int
    asked: Sequence[float]
    """Work, by way."""
    load: Sequence[float]
    """Work that each pool served, and that waits at its site."""


class Scaling(Protocol):
    def first(self) -> Sequence[int]:
        """Ready when the first step begins."""
        ...

    def wanted(self, seen: Seen, fleet: Fleet) -> Sequence[int]:
        """For each pool, decided as the step after the one that was seen begins."""
        ...


def replicas_for(work: float, bears: float) -> int:
    """At least one, so that whoever comes is not refused for minutes. A hair too much work is rounding, not work."""
    return max(1, math.ceil(work / bears - 1e-9))


def at_begin(world: World, offered: Offered) -> list[int]:
    """What every site would need by itself for the first step."""
    return [replicas_for(work, world.bears) for work in offered.work[0]]


class Static:
    """The replicas that the first day's highest hour needs at each site, and never any others. Knows that day beforehand."""

    def __init__(self, world: World, offered: Offered) -> None:
        day = offered.work[: min(DAY_STEPS, len(offered.work) - world.warm_up_steps - 1)]
        hours = [day[begin : begin + HOUR_STEPS].mean(0) for begin in range(0, len(day), HOUR_STEPS)]
        self._peak = [replicas_for(max(works), world.bears) for works in zip(*hours, strict=True)]

    def first(self) -> Sequence[int]:
        return self._peak

    def wanted(self, seen: Seen, fleet: Fleet) -> Sequence[int]:
        return self._peak


class Reactive:
    """As KEDA and Kubernetes' horizontal autoscaler do: each pool follows its own load of the step before.

    Up at once and as far as needed, down to the highest number wanted within the stabilisation.

    Args:
        world: what is scaled.
        offered: looked at for the first step's replicas only.
        spare: share of what replicas bear that is to stay free.
    """

    def __init__(self, world: World, offered: Offered, *, spare: float = 0.0) -> None:
        self._bears = world.bears * (1.0 - spare)
        self._first = at_begin(world, offered)
        steps = round(STABILISATION_S / STEP_S)
        self._lately: list[deque[int]] = [deque(maxlen=steps) for _ in world.pools]

    def first(self) -> Sequence[int]:
        return self._first

    def wanted(self, seen: Seen, fleet: Fleet) -> Sequence[int]:
        loads = zip(fleet.running, seen.load, self._lately, strict=True)
        return [self._of_pool(running, load, lately) for running, load, lately in loads]

    def _of_pool(self, running: int, load: float, lately: deque[int]) -> int:
        near = running and abs(load / (running * self._bears) - 1.0) <= TOLERANCE
        now = running if near else replicas_for(load, self._bears)
        lately.append(now)
        return max(now, min(running, max(lately)))
