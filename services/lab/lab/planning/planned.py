"""Scaling by FleetMind's long loop: its forecasts and its planner, or its planner with the demand known beforehand."""

from collections.abc import Iterator, Sequence

from fleetmind.policy.planning.forecast import Forecast, Series
from fleetmind.policy.planning.model import Demand, PoolNow
from fleetmind.policy.planning.planner import Planner, horizon_s
from lab.planning.fleet import Fleet
from lab.planning.forecast_errors import Made
from lab.planning.offered import Offered
from lab.planning.scaling import Seen, at_begin
from lab.planning.world import STEP_S, World

VERSION = "1"
BEGIN_UNIX_S = 1_767_571_200
"""Midnight UTC of a Monday, 5 January 2026: days of the model are days of the clock."""


class Planned:
    """One plan for all sites after each step.

    Args:
        world: what is planned for.
        offered: what comes; looked at for the first step's replicas and, if `known`, at the horizon.
        known: plan for what will come, instead of a forecast of it.
    """

    def __init__(self, world: World, offered: Offered, *, known: bool = False) -> None:
        self._world = world
        self._offered = offered
        self._known = known
        self._first = at_begin(world, offered)
        self._planner = Planner()
        self._series = [Series() for _ in world.ways]
        self.made: list[Made] = []
        """All forecasts, to be judged when it is known what came."""

    def first(self) -> Sequence[int]:
        return self._first

    def wanted(self, seen: Seen, fleet: Fleet) -> Sequence[int]:
        step = seen.step + 1
        pools = list(self._pools(fleet, step))
        demands = list(self._demands(seen, horizon_s(pools, STEP_S)))
        plan = self._planner.plan(
            pools, self._world.limits, demands, self._world.round_trips_s, now_s=step * STEP_S
        )
        return [pool.wanted for pool in plan.pools]

    def _pools(self, fleet: Fleet, step: int) -> Iterator[PoolNow]:
        for place, (site, model) in enumerate(self._world.pools):
            yield PoolNow(
                site=site,
                pool=f"{model.name}@{VERSION}",
                model=model.name,
                ready=fleet.ready[place],
                warming=fleet.warming[place],
                warm_in_s=fleet.warm_in_s(place, step),
                bears=self._world.bears,
                gpus=model.gpus,
                warm_up_s=self._world.warm_up_s,
                minimum=1,
            )

    def _demands(self, seen: Seen, ahead_s: float) -> Iterator[Demand]:
        target = seen.step + round(ahead_s / STEP_S)
        for place, way in enumerate(self._world.ways):
            if self._known:
                work = expected = float(self._offered.work[target, place])
            else:
                forecast = self._forecast(place, seen, ahead_s, target)
                work, expected = forecast.upper, forecast.expected
            yield Demand(
                entry_site=way.entry,
                model=way.model,
                work=work,
                expected=expected,
                horizon_s=ahead_s,
                sites=self._world.permitted(way.entry, way.model),
            )

    def _forecast(self, place: int, seen: Seen, ahead_s: float, target: int) -> Forecast:
        now = seen.asked[place]
        self._series[place].add(BEGIN_UNIX_S + seen.step * STEP_S, now)
        forecast = self._series[place].ahead(ahead_s)
        self.made.append(Made(target, place, forecast.expected, forecast.upper, now))
        return forecast
