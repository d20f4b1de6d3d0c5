"""Out of capacity and policy: what a plan is made from."""

from unit.fleetmind.worlds import MODEL, capacity

from fleetmind.policy.planning.fleet import SILENT_S, Begun, planned_sites, pools_now, round_trips_s
from fleetmind.policy.planning.model import FleetPlan, PoolNow, PoolPlan
from fleetmind.policy.sites import SiteView
from tokenfleet.contracts.policy import Fleet, Policy, PoolScaling, Rollout, Scaling

POOL = f"{MODEL}@v1"


def view(**instances: int) -> SiteView:
    sites = SiteView()
    for site, count in instances.items():
        sites.apply(capacity(site, ready=count, instances=count), 0.0)
    return sites


def policy(pools: dict[str, PoolScaling], drained: tuple[str, ...] = ()) -> Policy:
    rollouts = {MODEL: Rollout(weights={"v2": 1.0}, drained=drained)}
    return Policy(fleet=Fleet(rollouts=rollouts, scaling=Scaling(pools=pools)))


def only(pools: list[PoolNow]) -> PoolNow:
    (pool,) = pools
    return pool


def wanting(count: int) -> FleetPlan:
    pool = PoolPlan(
        site="A", pool=POOL, model=MODEL, running=1, wanted=count, prewarm=0, work=1.0, bears=1.0, reason=""
    )
    return FleetPlan(pools=(pool,))


def test_a_pool_is_what_runs_and_what_the_policy_says_of_it_where_it_is():
    given = policy(
        {POOL: PoolScaling(gpus=4, max=9), f"B/{POOL}": PoolScaling(gpus=8, min=1, warm_up_s=60.0)}
    )
    here, there = pools_now(view(A=3, B=2), ["A", "B"], given, Begun(), 0.0)
    assert (here.ready, here.gpus, here.maximum, here.minimum) == (3, 4, 9, 0)
    assert (there.ready, there.gpus, there.maximum, there.minimum, there.warm_up_s) == (2, 8, None, 1, 60.0)


def test_a_pool_without_replicas_is_planned_for_where_the_policy_names_it():
    pool = only(pools_now(view(), ["A"], policy({f"A/{POOL}": PoolScaling(min=1)}), Begun(), 0.0))
    assert (pool.pool, pool.model, pool.ready, pool.minimum) == (POOL, MODEL, 0, 1)


def test_a_drained_version_is_to_go_whatever_its_minimum():
    given = policy({POOL: PoolScaling(min=2, max=5)}, ("v1",))
    pool = only(pools_now(view(A=3), ["A"], given, Begun(), 0.0))
    assert (pool.minimum, pool.maximum) == (0, 0)


def test_an_engine_that_is_silent_for_a_moment_still_counts_and_one_that_drains_does_not():
    sites = SiteView()
    silent = capacity("A", ready=0, instances=2, liveness="dead")
    draining = silent.instances[0].model_copy(update={"draining": True})
    sites.apply(silent.model_copy(update={"instances": [draining, silent.instances[1]]}), 0.0)
    assert only(pools_now(sites, ["A"], Policy(), Begun(), 0.0)).ready == 1


def test_what_a_plan_began_is_warming_until_it_is_there_or_took_too_long():
    begun, given = Begun(), policy({POOL: PoolScaling(warm_up_s=300.0)})
    begun.wanted(wanting(4), 100.0)
    begun.wanted(wanting(4), 160.0)
    pool = only(pools_now(view(A=1), ["A"], given, begun, 160.0))
    assert (pool.warming, pool.warm_in_s) == (3, 240.0)
    assert only(pools_now(view(A=4), ["A"], given, begun, 160.0)).warming == 0
    assert only(pools_now(view(A=1), ["A"], given, begun, 401.0)).warming == 0


def test_those_that_tell_of_demand_are_planned_for_together_unless_they_are_cut_off():
    sites = view(A=1, B=1)
    assert planned_sites(sites, "B", {"A", "B"}, 0.0) == ["A", "B"]
    assert planned_sites(sites, "B", {"B"}, 0.0) == ["B"]
    assert planned_sites(sites, "B", {"A", "B"}, SILENT_S) == ["B"]


def test_round_trips_are_as_configured_else_as_measured():
    given = Policy(fleet=Fleet(round_trips_ms={"A-B": 30.0}))
    found = round_trips_s("A", ["A", "B", "C"], {"B": 0.1, "C": 0.2}, given)
    assert (found["A", "B"], found["B", "A"], found["A", "C"]) == (0.03, 0.03, 0.2)
