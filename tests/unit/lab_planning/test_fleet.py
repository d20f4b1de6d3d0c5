"""Replicas need their warm-up, and never take more GPUs than a site has."""

from hypothesis import given
from hypothesis import strategies as st

from lab.planning.fleet import Fleet
from lab.planning.world import STEP_S, World

WORLD = World()
POOLS = len(WORLD.pools)
counts = st.lists(st.integers(0, 40), min_size=POOLS, max_size=POOLS)


@given(first=counts, later=st.lists(counts, max_size=12))
def test_whatever_is_wanted_no_site_takes_more_gpus_than_it_has(
    first: list[int], later: list[list[int]]
) -> None:
    fleet = Fleet(WORLD, first)
    for step, wanted in enumerate(later, 1):
        fleet.begin(step)
        before = fleet.running
        begun, stopped = fleet.scale(wanted, step)
        assert sum(fleet.running) == sum(before) + begun - stopped
        assert all(now <= max(goal, 0) for now, goal in zip(fleet.running, wanted, strict=True))
        assert all(fleet.gpus(site) <= WORLD.site_gpus for site in WORLD.sites)


def test_a_replica_is_ready_after_its_warm_up_and_takes_gpus_at_once() -> None:
    fleet = Fleet(WORLD, [1] * POOLS)
    before = fleet.gpus("A")
    assert fleet.scale([3, *[1] * (POOLS - 1)], 10) == (2, 0)
    assert fleet.gpus("A") == before + 2 * 4 and fleet.warming[0] == 2
    assert fleet.warm_in_s(0, 12) == (WORLD.warm_up_steps - 2) * STEP_S
    fleet.begin(9 + WORLD.warm_up_steps)
    assert fleet.ready[0] == 1
    fleet.begin(10 + WORLD.warm_up_steps)
    assert fleet.ready[0] == 3 and fleet.warm_in_s(0, 10 + WORLD.warm_up_steps) == 0.0


def test_what_is_still_warming_is_stopped_before_what_serves() -> None:
    fleet = Fleet(WORLD, [2] * POOLS)
    fleet.scale([4, *[2] * (POOLS - 1)], 1)
    assert fleet.scale([1, *[2] * (POOLS - 1)], 2) == (0, 3)
    assert fleet.ready[0] == 1 and fleet.warming[0] == 0


def test_pools_of_a_full_site_take_turns() -> None:
    fleet = Fleet(WORLD, [100] * POOLS)
    # 64 GPUs: ten turns of four and two, and one more of four.
    assert fleet.ready[:2] == [11, 10]
