"""The ways to scale that plans are compared with do as they are known to."""

import numpy as np
import pytest

from lab.planning.fleet import Fleet
from lab.planning.offered import Offered
from lab.planning.scaling import Reactive, Seen, Static, replicas_for
from lab.planning.world import World

WORLD = World()
POOLS = len(WORLD.pools)


def steady(work: float, steps: int = 120) -> Offered:
    shape = (steps + WORLD.warm_up_steps + 1, POOLS)
    return Offered(np.full(shape, work), np.zeros(shape, dtype=np.bool_))


def after(scaling: Reactive, fleet: Fleet, loads: list[float]) -> list[int]:
    """What is wanted of the first pool after each load."""
    wanted: list[int] = []
    for step, load in enumerate(loads):
        goals = scaling.wanted(Seen(step, [load] * POOLS, [load] * POOLS), fleet)
        fleet.scale(goals, step)
        wanted.append(goals[0])
    return wanted


@pytest.mark.parametrize(("work", "replicas"), [(0.0, 1), (0.8, 1), (0.81, 2), (8.0, 10)])
def test_as_many_replicas_as_bear_the_work_one_at_least(work: float, replicas: int) -> None:
    assert replicas_for(work, 0.8) == replicas


def test_static_is_sized_by_the_highest_hour_of_the_first_day_alone() -> None:
    offered = steady(1.0, steps=2 * 1440)
    offered.work[60:120, 0] = 4.0
    offered.work[200, 1] = 50.0
    offered.work[1500:1600, 2] = 90.0
    assert list(Static(WORLD, offered).first()) == [5, 3, *[2] * (POOLS - 2)]


def test_reactive_follows_a_rise_at_once_and_a_fall_after_five_minutes() -> None:
    fleet = Fleet(WORLD, [2] * POOLS)
    wanted = after(Reactive(WORLD, steady(1.6)), fleet, [1.6, 4.0, *[1.6] * 6])
    assert wanted == [2, 5, 5, 5, 5, 5, 2, 2]


def test_reactive_leaves_what_is_within_a_tenth_of_its_target() -> None:
    fleet = Fleet(WORLD, [10, *[1] * (POOLS - 1)])
    assert after(Reactive(WORLD, steady(8.0)), fleet, [8.7, 7.3]) == [10, 10]


def test_reactive_with_spare_keeps_it_free() -> None:
    fleet = Fleet(WORLD, [1] * POOLS)
    assert after(Reactive(WORLD, steady(0.5), spare=0.2), fleet, [3.2]) == [5]
