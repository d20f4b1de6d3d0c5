"""Plans: enough replicas where the work is, within every limit, and a reason for each."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fleetmind.planning.plans import BEARS, demand, gpus, pool

from fleetmind.policy.planning.model import Demand, FleetPlan, PoolNow, SiteLimits
from fleetmind.policy.planning.planner import Planner, horizon_s

NEAR_S = {(one, other): 0.03 for one in "ABCD" for other in "ABCD" if one != other}


def planned(pools: list[PoolNow], limits: list[SiteLimits], demands: list[Demand]) -> FleetPlan:
    return Planner().plan(pools, limits, demands, NEAR_S, 0.0)


def wanted(plan: FleetPlan) -> dict[str, int]:
    return {one.site: one.wanted for one in plan.pools}


def test_replicas_bear_what_is_forecast_and_the_missing_are_begun_now():
    plan = planned([pool("B", 1, warming=1)], gpus(B=8), [demand("B", 3.1)])
    (only,) = plan.pools
    assert (only.running, only.wanted, only.prewarm) == (2, 4, 2)
    assert only.work == pytest.approx(3.1) and only.bears == pytest.approx(3.2)
    assert only.reason == "demand of llama at B is forecast at 2.8 in 6 min (+-0.3), 4 replicas bear 3.2"


def test_what_a_limit_leaves_out_is_served_where_there_is_room_and_the_reason_says_so():
    plan = planned([pool("B", 3), pool("C", 2)], gpus(B=4, C=8), [demand("B", 3.8), demand("C", 0.5)])
    assert wanted(plan) == {"B": 4, "C": 2}
    assert "5 would bear it all, the GPU limit of B allows 4: 0.6 goes to C" in plan.pools[0].reason
    assert "0.6 of what enters at B is planned here" in plan.pools[1].reason
    assert not plan.unserved


def test_what_nobody_can_bear_is_said():
    plan = planned([pool("B", 3), pool("C", 1)], gpus(B=4, C=8), [demand("B", 3.8, sites="B")])
    (left,) = plan.unserved
    assert (left.entry_site, left.model) == ("B", "llama") and left.work == pytest.approx(0.6)
    assert left.reason == "0.6 of llama from B is left: the GPU limit of B allows 4"
    assert "0.6 is served nowhere" in plan.pools[0].reason


def test_a_model_without_a_pool_where_it_may_run_is_said_to_be_unserved():
    plan = planned([pool("B")], gpus(B=4), [demand("B", 1.0, sites="C"), demand("C", 1.0, "other")])
    assert [one.reason for one in plan.unserved] == [
        "no pool of llama at C may serve it",
        "no pool of other may serve it",
    ]


def test_where_limits_are_not_known_there_are_never_more_than_now():
    plan = planned([pool("B", 2)], [], [demand("B", 3.0)])
    assert wanted(plan) == {"B": 2}
    assert "the GPU limit of B is not known: no more than what runs there now" in plan.unserved[0].reason


def test_memory_is_a_limit_too():
    limits = [SiteLimits(site="B", gpus=100, memory_gib=300.0)]
    plan = planned([pool("B", 1, memory_gib=140.0)], limits, [demand("B", 4.0)])
    assert wanted(plan) == {"B": 2} and "the memory limit of B allows 2" in plan.unserved[0].reason


def test_work_stays_at_home_unless_another_site_is_much_cheaper():
    near = [pool("B", 0, gpu_hour_price=1.1), pool("C", 0)]
    assert wanted(planned(near, gpus(B=9, C=9), [demand("B", 0.8)])) == {"B": 1, "C": 0}
    far = [pool("B", 0, gpu_hour_price=2.0), pool("C", 0)]
    assert wanted(planned(far, gpus(B=9, C=9), [demand("B", 0.8)])) == {"B": 0, "C": 1}


def test_a_minimum_is_kept_and_a_maximum_of_none_lets_a_pool_go():
    plan = planned([pool("B", 2, minimum=2), pool("C", 3, maximum=0)], gpus(B=9, C=9), [])
    assert wanted(plan) == {"B": 2, "C": 0} and "2 is its minimum" in plan.pools[0].reason


def test_minimums_beyond_a_limit_are_kept_as_far_as_it_allows():
    plan = planned([pool("B", 0, minimum=3)], gpus(B=2), [])
    assert (
        wanted(plan) == {"B": 2} and "its minimum is 3, the GPU limit of B allows 2" in plan.pools[0].reason
    )


def test_what_is_not_wanted_any_more_goes_after_a_while_one_by_one():
    planner, pools = Planner(), [pool("B", 4)]
    first = planner.plan(pools, gpus(B=8), [demand("B", 0.5)], {}, 0.0)
    assert wanted(first) == {"B": 4} and "3 of them only held" in first.pools[0].reason
    assert wanted(planner.plan(pools, gpus(B=8), [demand("B", 0.5)], {}, 650.0)) == {"B": 3}


def test_what_takes_longer_to_warm_up_is_held_longer():
    planner, pools = Planner(), [pool("B", 4, warm_up_s=1_800.0)]
    planner.plan(pools, gpus(B=8), [demand("B", 0.5)], {}, 0.0)
    assert wanted(planner.plan(pools, gpus(B=8), [demand("B", 0.5)], {}, 1_500.0)) == {"B": 4}


def test_what_is_only_held_makes_room_for_what_is_wanted():
    pools = [pool("B", 4), pool("B", 0, model="qwen")]
    plan = planned(pools, gpus(B=4), [demand("B", 0.5), demand("B", 1.5, "qwen")])
    assert [one.wanted for one in plan.pools] == [2, 2]


def test_demand_must_be_known_until_the_slowest_pool_is_warm_and_the_next_plan_comes():
    assert horizon_s([pool("B", warm_up_s=300.0), pool("C", warm_up_s=900.0)], 60.0) == 960.0
    assert horizon_s([], 60.0) == 60.0


SITES, MODELS = "ABC", ("llama", "qwen")


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[PoolNow], list[SiteLimits], list[Demand]]:
    sizes = {model: (draw(st.integers(1, 4)), draw(st.sampled_from([0.0, 40.0]))) for model in MODELS}
    pools = [
        pool(
            site,
            draw(st.integers(0, 3)),
            model,
            warming=draw(st.integers(0, 2)),
            gpus=sizes[model][0],
            memory_gib=sizes[model][1],
            minimum=draw(st.integers(0, 2)),
            maximum=draw(st.none() | st.integers(0, 6)),
            gpu_hour_price=draw(st.sampled_from([0.0, 1.0, 2.0])),
            warm_up_s=draw(st.sampled_from([0.0, 300.0, 7_200.0])),
        )
        for site in SITES
        for model in MODELS
        if draw(st.booleans())
    ]
    limits = [
        SiteLimits(
            site=site,
            gpus=draw(st.none() | st.integers(0, 20)),
            memory_gib=draw(st.none() | st.floats(0, 400)),
        )
        for site in SITES
        if draw(st.booleans())
    ]
    demands = [
        demand(
            draw(st.sampled_from(SITES + "D")),
            draw(st.floats(0, 12)),
            draw(st.sampled_from(MODELS)),
            sites=draw(st.none() | st.sampled_from(["", "A", "AB", "C"])),
        )
        for _ in range(draw(st.integers(0, 5)))
    ]
    return pools, limits, demands


@settings(max_examples=150, deadline=None)
@given(fleets())
def test_no_limit_is_ever_exceeded(fleet: tuple[list[PoolNow], list[SiteLimits], list[Demand]]):
    pools, limits, demands = fleet
    plan, known = planned(pools, limits, demands), {limit.site: limit for limit in limits}
    for site in SITES:
        here = [(one, each) for one, each in zip(plan.pools, pools, strict=True) if one.site == site]
        for each, limit in (("gpus", "gpus"), ("memory_gib", "memory_gib")):
            most = getattr(known.get(site), limit, None)
            if most is None:
                most = sum(now.running * getattr(now, each) for _, now in here)
            assert sum(one.wanted * getattr(now, each) for one, now in here) <= most + 1e-6
        for one, now in here:
            assert one.wanted >= 0 and (now.maximum is None or one.wanted <= now.maximum)
            assert one.work <= one.bears + 1e-6
            assert one.prewarm == max(0, one.wanted - now.running)


@settings(max_examples=150, deadline=None)
@given(fleets())
def test_all_work_is_planned_somewhere_or_said_to_be_unserved(
    fleet: tuple[list[PoolNow], list[SiteLimits], list[Demand]],
):
    plan = planned(*fleet)
    for model in MODELS:
        asked = sum(one.work for one in fleet[2] if one.model == model)
        served = sum(one.work for one in plan.pools if one.model == model)
        left = sum(one.work for one in plan.unserved if one.model == model)
        assert served + left == pytest.approx(asked, abs=1e-4)


@settings(max_examples=100, deadline=None)
@given(fleets(), st.sampled_from(SITES), st.floats(0.1, 12))
def test_no_work_is_planned_where_it_may_not_run(
    fleet: tuple[list[PoolNow], list[SiteLimits], list[Demand]], entry: str, work: float
):
    pools, limits, _ = fleet
    plan = planned(pools, limits, [demand(entry, work, sites="A")])
    assert all(one.work <= 1e-6 for one in plan.pools if one.site != "A" or one.model != "llama")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=3),
    st.lists(st.integers(0, 8), min_size=3, max_size=3),
    st.lists(st.floats(0, 6), min_size=3, max_size=3),
    st.integers(0, 2),
    st.floats(0, 6),
)
def test_more_demand_of_a_model_never_gets_fewer_replicas_in_total(
    ready: list[int], most: list[int], works: list[float], at: int, more: float
):
    pools = [pool(site, count) for site, count in zip(SITES, ready, strict=True)]
    limits = gpus(**dict(zip(SITES, most, strict=True)))

    def total(asked: list[float]) -> int:
        demands = [demand(site, work) for site, work in zip(SITES, asked, strict=True)]
        return sum(wanted(planned(pools, limits, demands)).values())

    assert total([work + more * (place == at) for place, work in enumerate(works)]) >= total(works)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6_000), min_size=3, max_size=3))
def test_with_room_everywhere_each_site_has_just_what_its_own_work_needs(thousandths: list[int]):
    works = [one / 1_000 for one in thousandths]  # less than a millionth of an instance is no work
    pools = [pool(site, 0) for site in SITES]
    demands = [demand(site, work) for site, work in zip(SITES, works, strict=True)]
    plan = planned(pools, gpus(A=99, B=99, C=99), demands)
    assert list(wanted(plan).values()) == [math.ceil(work / BEARS - 1e-6) for work in works]
    assert not plan.unserved
