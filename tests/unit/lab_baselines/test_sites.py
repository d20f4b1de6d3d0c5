"""The baselines over several sites: x has a and b, y has c, z has d."""

from typing import TypeVar

import pytest
from unit.lab_baselines.small_fleet import arrival, fleet, prompt, read, routed_to, send

from lab.baselines import REGISTRY
from lab.baselines.gorgo import Gorgo, Gorgo2
from lab.baselines.sites import GlobalLeastLoad, RegionLocal, SiteRouter
from lab.baselines.skywalker import SkyWalker
from lab.sim.api import Hold, SiteAware

R = TypeVar("R", bound=SiteRouter)

ROUND_TRIPS_S = {
    ("x", "y"): 0.03,
    ("y", "x"): 0.03,
    ("x", "z"): 0.08,
    ("z", "x"): 0.08,
    ("y", "z"): 0.06,
    ("z", "y"): 0.06,
}


def sites(router: R) -> R:
    """As a simulation would set it up."""
    router.network({**ROUND_TRIPS_S, ("w", "x"): 0.05, ("w", "y"): 0.02, ("w", "z"): 0.09}, {})
    fleet(router, "abcd", c="y", d="z")
    for name in "abcd":
        read(router, name)
    return router


@pytest.mark.parametrize("name", [name for name, baseline in REGISTRY.items() if baseline.several_sites])
def test_they_are_told_of_the_network(name: str) -> None:
    assert isinstance(REGISTRY[name](0), SiteAware)


def test_region_local_stays_even_where_others_are_idle() -> None:
    router = sites(RegionLocal(0))
    for i in range(4):
        assert routed_to(router.decide(arrival(f"r{i}", 64, entry="x"), 0.0)) in "ab"
    assert router.loads["a"].requests == router.loads["b"].requests == 2


def test_region_local_of_a_site_without_instances_goes_to_the_nearest() -> None:
    router = sites(RegionLocal(0))
    assert routed_to(router.decide(arrival("r1", 64, entry="w"), 0.0)) == "c"
    assert routed_to(router.decide(arrival("r2", 64, entry="w", excluded=("c",)), 0.0)) in "ab"


def test_global_least_load_ignores_distance() -> None:
    router = sites(GlobalLeastLoad(0))
    assert {routed_to(router.decide(arrival(f"r{i}", 64, entry="x"), 0.0)) for i in range(4)} == set("abcd")


def test_skywalker_stays_while_a_local_replica_has_nothing_waiting() -> None:
    router = sites(SkyWalker(0))
    read(router, "a", waiting=1)
    for i in range(3):
        assert routed_to(router.decide(arrival(f"r{i}", 64, entry="x"), 0.0)) == "b"


def test_skywalker_prefers_the_longest_match_above_half_else_the_least_active() -> None:
    router = sites(SkyWalker(0))
    send(router, "a", "r1", blocks=prompt(("p", 6)))
    assert routed_to(router.decide(arrival("r2", blocks=prompt(("p", 6), ("q", 5))), 0.0)) == "a"
    assert routed_to(router.decide(arrival("r3", blocks=prompt(("p", 6), ("s", 6))), 0.0)) == "b", (
        "half is not above half"
    )


def test_skywalker_pushes_to_the_least_active_region_when_no_local_replica_is_available() -> None:
    router = sites(SkyWalker(0))
    for name in "ab":
        read(router, name, waiting=1)
    send(router, "c", "busy", 64)
    assert routed_to(router.decide(arrival("r1", 64, entry="x"), 0.0)) == "d"


def test_skywalker_pushes_to_the_region_that_holds_the_prompt() -> None:
    router = sites(SkyWalker(0))
    held = prompt(("p", 6))
    send(router, "c", "busy", blocks=held)
    for name in "ab":
        read(router, name, waiting=1)
    assert routed_to(router.decide(arrival("r1", blocks=held, entry="x"), 0.0)) == "c"


def test_skywalker_holds_when_nobody_is_available_and_never_pushes_to_a_region_that_queues() -> None:
    router = sites(SkyWalker(0))
    for name in "abcd":
        read(router, name, waiting=1)
    assert isinstance(router.decide(arrival("y1", 64, entry="y", excluded=("a", "b", "d")), 0.0), Hold)
    assert isinstance(router.decide(arrival("x1", 64, entry="x", excluded=("a", "b", "d")), 0.0), Hold)
    assert isinstance(router.decide(arrival("x2", 64, entry="x"), 0.0), Hold), "behind the head of its site"
    read(router, "c", 0.1)
    released = [one.request_id for one in router.release(0.1)]
    assert released == ["y1", "x1", "x2"], "y's own first; its queue is empty then, so x may push"


def test_gorgo_weighs_the_round_trip_against_the_prefill_it_saves() -> None:
    router = sites(Gorgo(0))
    held = prompt(("p", 10))
    send(router, "c", "busy", blocks=held)
    # 640 tokens are 64 ms of prefill: c costs 30 ms, a and b 64 ms.
    assert routed_to(router.decide(arrival("r1", blocks=held, entry="x"), 0.0)) == "c"
    # 256 tokens are 25.6 ms: not worth 30 ms.
    assert routed_to(router.decide(arrival("r2", blocks=held[:4], entry="x"), 0.0)) in "ab"


def test_gorgo_waits_while_every_instance_has_someone_waiting() -> None:
    router = sites(Gorgo(0))
    for name in "abcd":
        read(router, name, waiting=1)
    assert isinstance(router.decide(arrival("r1", 64, entry="x"), 0.0), Hold)
    read(router, "d", 0.1)
    (released,) = router.release(0.1)
    assert routed_to(released.decision) == "d"


def test_gorgo2_stays_until_local_work_exceeds_the_trip_and_the_prefill() -> None:
    router = sites(Gorgo2(0))
    for name in "ab":
        send(router, name, f"run_{name}", 400)
        router.first_token(f"run_{name}", name, 0.0)
    # Local: 0.1 ms * (0.5 * 400 + 1,000) = 120 ms; c: 30 + 100 = 130 ms.
    assert routed_to(router.decide(arrival("r1", 1_000, entry="x"), 0.0)) in "ab"
    router.ended("r1", "a", 0, 0.0)
    router.ended("r1", "b", 0, 0.0)
    for name in "ab":
        send(router, name, f"wait_{name}", 200)
    # Now 140 ms.
    assert routed_to(router.decide(arrival("r2", 1_000, entry="x"), 0.0)) == "c"


def test_gorgo2_asks_no_peer_where_someone_waits_and_then_stays() -> None:
    router = sites(Gorgo2(0))
    for name in "ab":
        send(router, name, f"wait_{name}", 5_000)
    assert routed_to(router.decide(arrival("r1", 1_000, entry="x"), 0.0)) == "c"
    read(router, "c", waiting=1)
    assert routed_to(router.decide(arrival("r2", 1_000, entry="x"), 0.0)) == "d"
    read(router, "d", waiting=1)
    assert routed_to(router.decide(arrival("r3", 1_000, entry="x"), 0.0)) in "ab"


def test_skywalker_pushes_to_no_region_that_has_a_queue() -> None:
    router = sites(SkyWalker(0))
    for name in "abd":
        read(router, name, waiting=1)
    # y's head may only use b, where someone waits; c is free all the while.
    assert isinstance(router.decide(arrival("y1", 64, entry="y", excluded=("a", "c", "d")), 0.0), Hold)
    assert isinstance(router.decide(arrival("x1", 64, entry="x"), 0.0), Hold)
    assert list(router.release(0.0)) == []


def test_a_held_request_nobody_waits_for_any_more_is_not_routed() -> None:
    router = sites(SkyWalker(0))
    for name in "abcd":
        read(router, name, waiting=1)
    router.decide(arrival("gone", 64, deadline_s=5.0), 0.0)
    router.decide(arrival("here", 64), 0.0)
    read(router, "a", 6.0)
    assert [released.request_id for released in router.release(6.0)] == ["here"]
