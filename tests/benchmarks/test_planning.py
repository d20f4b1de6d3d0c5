"""What one plan of replicas costs, beside the same program solved in whole numbers.

TokenFleet's relaxes the program and rounds within the limits. SciPy's `milp` (HiGHS) gives the cheapest whole numbers; it is asked
only where it ends in seconds. How much dearer the rounded plan is than the cheapest stands in `extra_info`.
"""

import random
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from unit.fleetmind.planning.plans import pool

from fleetmind.policy.planning.forecast import Series
from fleetmind.policy.planning.model import Demand, PoolNow, SiteLimits
from fleetmind.policy.planning.planner import Planner
from fleetmind.policy.planning.program import Program
from fleetmind.policy.planning.replicas import least_replicas, most_replicas, whole_replicas

SMALL, LARGE = (3, 2), (50, 4)
"""Sites and models."""
AT_MOST_DEARER = 0.05


class World:
    """Sites with room for some more than they run, asked for about half of what fits."""

    def __init__(self, sites: int, models: int) -> None:
        rng = random.Random(sites)
        names = [f"s{number:02d}" for number in range(sites)]
        self.pools: list[PoolNow] = [
            pool(site, rng.randint(0, 8), f"m{model}", gpus=rng.choice((1, 2, 4)), minimum=rng.randint(0, 1))
            for site in names
            for model in range(models)
        ]
        self.limits = [SiteLimits(site=site, gpus=16 * models) for site in names]
        self.demands = [
            Demand(entry_site=site, model=f"m{model}", work=1.2 * work, expected=work, horizon_s=360.0)
            for site in names
            for model in range(models)
            for work in [rng.expovariate(1 / 3.0)]
        ]
        self.round_trips_s = {(one, other): rng.uniform(0.005, 0.15) for one in names for other in names}
        self.program = Program(self.pools, self.limits, self.demands, self.round_trips_s)


@pytest.fixture(
    scope="module", params=[SMALL, LARGE], ids=lambda size: f"{size[0]} sites of {size[1]} models"
)
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


def costs(program: Program, replicas: Any) -> float:
    solution = program.solve(replicas, replicas)
    stay = np.minimum(replicas, program.running)
    variables = [stay, replicas - stay, solution.flows, solution.unserved]
    return float(program.costs @ np.concatenate(variables))


def cheapest(program: Program) -> Any:
    """Whole numbers of every pool."""
    most = most_replicas(program)
    least = least_replicas(program, most)
    stay, free = np.minimum(most, program.running), len(program.ways) + len(program.demands)
    found: Any = milp(
        program.costs,
        integrality=np.concatenate([np.ones(2 * len(most)), np.zeros(free)]),
        bounds=Bounds(
            np.concatenate([np.minimum(least, stay), np.maximum(least - stay, 0), np.zeros(free)]),
            np.concatenate([stay, most - stay, np.full(free, np.inf)]),
        ),
        constraints=[
            LinearConstraint(program.within[0], -np.inf, program.within[1]),
            LinearConstraint(program.served, *(2 * [[demand.work for demand in program.demands]])),
        ],
    )
    assert found.status == 0, found.message
    return np.round(found.x[: len(most)] + found.x[len(most) : 2 * len(most)]).astype(np.int64)


def test_one_plan(benchmark: Any, world: World):
    benchmark.group = f"a plan for {len(world.pools)} pools"
    plan = benchmark(
        lambda: Planner().plan(world.pools, world.limits, world.demands, world.round_trips_s, 0.0)
    )
    assert not plan.unserved


def test_the_cheapest_in_whole_numbers(benchmark: Any, world: World):
    if len(world.demands) > SMALL[0] * SMALL[1]:
        pytest.skip("takes longer than the ten seconds in which a plan must be there")
    benchmark.group = f"a plan for {len(world.pools)} pools"
    best = costs(world.program, benchmark(cheapest, world.program))
    dearer = costs(world.program, whole_replicas(world.program)) / best - 1.0
    benchmark.extra_info["rounded plan dearer by"] = round(dearer, 4)
    assert dearer <= AT_MOST_DEARER


def test_one_more_interval_of_a_series(benchmark: Any):
    benchmark.group = "a minute of demand, learned and forecast"
    rng, series, start_s = random.Random(1), Series(), iter(range(0, 10**9, 60))

    def minute() -> None:
        series.add(next(start_s), rng.expovariate(1.0))
        series.ahead(360.0)

    for _ in range(2_000):
        minute()
    benchmark(minute)
