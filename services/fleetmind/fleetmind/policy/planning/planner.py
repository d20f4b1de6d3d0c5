"""The plan of all pools, from what they are and what is forecast. Pure: it remembers what it planned before."""

from collections.abc import Iterable, Mapping, Sequence

from fleetmind.policy.planning.hysteresis import HOLD_S, Steadying
from fleetmind.policy.planning.model import Demand, FleetPlan, PoolNow, PoolPlan, SiteLimits, Unserved
from fleetmind.policy.planning.program import Counts, Program
from fleetmind.policy.planning.reasons import Reasons
from fleetmind.policy.planning.replicas import NOTHING, whole_replicas

PLAN_EVERY_S = 60.0


def horizon_s(pools: Iterable[PoolNow], plan_every_s: float = PLAN_EVERY_S) -> float:
    """How far ahead the demand of a model must be known: what is decided now is ready then, and the next decision comes in between.

    Args:
        pools: of the model; the slowest counts.
        plan_every_s: from one plan to the next.
    """
    return max((pool.warm_up_s for pool in pools), default=0.0) + plan_every_s


class Planner:
    """Makes one plan after the other.

    Args:
        hold_s: replicas go only when no plan of this time has wanted them, or of the time up to their horizon if that is longer.
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._steadying = Steadying()

    def plan(
        self,
        pools: Sequence[PoolNow],
        limits: Iterable[SiteLimits],
        demands: Sequence[Demand],
        round_trips_s: Mapping[tuple[str, str], float],
        now_s: float,
    ) -> FleetPlan:
        """What every pool should be now.

        Args:
            pools: of all sites, as they run.
            limits: of the sites; one that is not named has unknown limits.
            demands: forecast, at the horizon of their model.
            round_trips_s: by entry and site; one that is not known counts as far.
            now_s: monotonic, wall seconds.
        """
        demands = [demand for demand in demands if demand.work > NOTHING]
        if not pools and not demands:
            return FleetPlan(pools=())
        program = Program(pools, limits, demands, round_trips_s)
        by_itself = whole_replicas(program)
        wanted = self._steadied(program, by_itself, now_s)
        solution = program.solve(wanted, wanted)
        reasons = Reasons(program, solution, by_itself, wanted)
        return FleetPlan(
            pools=tuple(
                PoolPlan(
                    site=pool.site,
                    pool=pool.pool,
                    model=pool.model,
                    running=pool.running,
                    wanted=int(wanted[place]),
                    prewarm=max(0, int(wanted[place]) - pool.running),
                    work=reasons.served[place],
                    bears=pool.bears * int(wanted[place]),
                    reason=reasons.of_pool(place),
                )
                for place, pool in enumerate(pools)
            ),
            unserved=tuple(
                Unserved(
                    entry_site=demand.entry_site,
                    model=demand.model,
                    work=float(solution.unserved[number]),
                    reason=reasons.of_unserved(number),
                )
                for number, demand in enumerate(demands)
                if solution.unserved[number] > NOTHING
            ),
        )

    def _steadied(self, program: Program, by_itself: Counts, now_s: float) -> Counts:
        """Holds what is not wanted any more, as far as what is wanted leaves room for it."""
        self._steadying.keep({(pool.site, pool.pool) for pool in program.pools})
        held = by_itself.copy()
        for place, pool in enumerate(program.pools):
            goal = self._steadying.steadied(
                (pool.site, pool.pool),
                pool.running,
                int(by_itself[place]),
                max(self._hold_s, horizon_s([pool])),
                now_s,
            )
            most = goal if pool.maximum is None else min(goal, pool.maximum)
            while held[place] < most:
                held[place] += 1
                if not program.fits(held):
                    held[place] -= 1
                    break
        return held
