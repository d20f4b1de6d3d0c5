"""One policy through all steps, and everything that can be counted about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.planning.fleet import Fleet
from lab.planning.forecast_errors import ForecastErrors, judged
from lab.planning.offered import Floats, Offered
from lab.planning.planned import Planned
from lab.planning.scaling import SPARE, Reactive, Scaling, Seen, Static
from lab.planning.serving import Serving
from lab.planning.world import World

Counts = npt.NDArray[np.int64]
STATIC = "static at peak"
PLAN = "plan"
POLICIES: dict[str, Callable[[World, Offered], Scaling]] = {
    STATIC: Static,
    "reactive": Reactive,
    f"reactive, {SPARE:.0%} spare": lambda world, offered: Reactive(world, offered, spare=SPARE),
    PLAN: Planned,
    "plan, forecast known": lambda world, offered: Planned(world, offered, known=True),
}
LOOK_STEPS = 30
"""How often progress is told."""


@dataclass(frozen=True, slots=True)
class Run:
    """By step, and way or pool."""

    asked: Floats
    late: Floats
    """Of what was asked for in this step."""
    in_burst: npt.NDArray[np.bool_]
    served: Floats
    """By pool, work of the step before included."""
    away: Floats
    """Of it, away from its entry; by step only."""
    ready: Counts
    running: Counts
    begun: Counts
    """By step only."""
    stopped: Counts
    forecast: ForecastErrors | None
    """Of policies that forecast."""


def simulate(world: World, offered: Offered, policy: str, on_step: Callable[[int], Any] | None = None) -> Run:
    """All steps that `offered` was drawn for. What still waits after the last one counts as late.

    Args:
        world: where.
        offered: what comes.
        policy: one of `POLICIES`.
        on_step: told now and then how many steps are over.
    """
    steps = len(offered.work) - world.warm_up_steps - 1
    scaling = POLICIES[policy](world, offered)
    fleet = Fleet(world, scaling.first())
    serving = Serving(world)
    late = np.zeros((steps, len(world.ways)))
    served, away = np.zeros((steps, len(world.pools))), np.zeros(steps)
    ready, running = (np.zeros((steps, len(world.pools)), dtype=np.int64) for _ in range(2))
    moves = np.zeros((steps, 2), dtype=np.int64)
    seen: Seen | None = None
    for step, work in enumerate(offered.work[:steps].tolist()):
        fleet.begin(step)
        if seen is not None:
            moves[step] = fleet.scale(scaling.wanted(seen, fleet), step)
        ready[step], running[step] = fleet.ready, fleet.running
        done = serving.step(work, fleet.ready)
        served[step], away[step] = done.by_pool, done.away
        late[step - 1 if step else 0] = done.late
        late[step] = done.waiting  # of the last step only: the others are known a step later
        seen = Seen(step, work, [here + left for here, left in zip(done.by_pool, done.waiting, strict=True)])
        if on_step and (step + 1) % LOOK_STEPS == 0:
            on_step(step + 1)
    if on_step:
        on_step(steps)
    return Run(
        asked=offered.work[:steps],
        late=late,
        in_burst=offered.in_burst[:steps],
        served=served,
        away=away,
        ready=ready,
        running=running,
        begun=moves[:, 0],
        stopped=moves[:, 1],
        forecast=judged(scaling.made, offered.work)
        if isinstance(scaling, Planned) and scaling.made
        else None,
    )
