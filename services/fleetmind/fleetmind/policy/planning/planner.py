"""The plan of all pools, from what they are and what is forecast. Pure: it remembers what it planned before."""

from collections.abc import Iterable, Mapping, Sequence

from fleetmind.policy.planning.model import Demand, FleetPlan, PoolNow, SiteLimits

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
        hold_s: replicas go only when no plan of this time has wanted them.
    """

    def __init__(self, hold_s: float = 600.0) -> None:
        self._hold_s = hold_s

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
        raise NotImplementedError
