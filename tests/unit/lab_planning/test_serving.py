"""Work is served once, at home first, only where it may run, at most one step late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.planning.serving import Serving
from lab.planning.world import World

WORLD = World()
POOLS = len(WORLD.pools)
works = st.lists(st.floats(0, 30), min_size=POOLS, max_size=POOLS)
readies = st.lists(st.integers(0, 20), min_size=POOLS, max_size=POOLS)


@given(steps=st.lists(st.tuples(works, readies), min_size=1, max_size=8))
def test_no_work_is_lost_or_counted_twice(steps: list[tuple[list[float], list[int]]]) -> None:
    serving = Serving(WORLD)
    asked = served = late = 0.0
    waiting: list[float] = []
    for work, ready in steps:
        done = serving.step(work, ready)
        asked, served, late = asked + sum(work), served + sum(done.by_pool), late + sum(done.late)
        waiting = done.waiting
        rooms = [replicas * WORLD.bears for replicas in ready]
        assert all(-1e-9 <= one <= room + 1e-9 for one, room in zip(done.by_pool, rooms, strict=True))
        assert 0.0 <= done.away <= sum(done.by_pool) + 1e-9
    assert served + late + sum(waiting) == pytest.approx(asked)


def replicas(**at: int) -> list[int]:
    """By site, of `code`; none of anything else."""
    return [at.get(site, 0) if model.name == "code" else 0 for site, model in WORLD.pools]


def of_code(entry: str, work: float) -> list[float]:
    return [work if (way.entry, way.model) == (entry, "code") else 0.0 for way in WORLD.ways]


def test_work_stays_at_home_while_there_is_room() -> None:
    assert Serving(WORLD).step(of_code("B", 1.6), replicas(A=2, B=2, C=2)).away == 0.0


def test_work_that_does_not_fit_at_home_goes_where_there_is_room() -> None:
    done = Serving(WORLD).step(of_code("B", 1.6), replicas(B=1, C=1))
    assert done.away == pytest.approx(0.8) and sum(done.waiting) == pytest.approx(0.0)


def test_work_bound_to_two_sites_does_not_go_to_the_third() -> None:
    done = Serving(WORLD).step(of_code("A", 1.6), replicas(C=9))
    assert sum(done.by_pool) == 0.0 and sum(done.waiting) == pytest.approx(1.6)


def test_work_waits_one_step_and_is_late_then() -> None:
    serving = Serving(WORLD)
    assert sum(serving.step(of_code("A", 1.6), replicas()).late) == 0.0
    done = serving.step(of_code("A", 0.0), replicas(A=1))
    assert sum(done.by_pool) == pytest.approx(0.8) and sum(done.late) == pytest.approx(0.8)
    assert sum(serving.step(of_code("A", 0.0), replicas(A=1)).by_pool) == 0.0


def test_what_waited_is_served_before_what_comes() -> None:
    serving = Serving(WORLD)
    serving.step(of_code("A", 0.8), replicas())
    done = serving.step(of_code("A", 0.8), replicas(A=1))
    assert sum(done.late) == 0.0 and sum(done.waiting) == pytest.approx(0.8)
