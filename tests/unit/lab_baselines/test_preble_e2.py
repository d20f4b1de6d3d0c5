"""Preble's E2, with the costs computed by hand (a prefill takes 0.1 ms a token)."""

import pytest
from unit.lab_baselines.small_fleet import arrival, fleet, prompt, routed_to, send

from lab.baselines.preble_e2 import PrebleE2


def router_of(names: str = "ab") -> PrebleE2:
    router = fleet(PrebleE2(0), names)
    assert isinstance(router, PrebleE2)
    return router


def test_a_prompt_mostly_cached_goes_to_its_holder_whatever_the_load() -> None:
    router = router_of()
    send(router, "a", "r1", blocks=prompt(("p", 6)))
    for i in range(5):
        send(router, "a", f"busy{i}", blocks=prompt((f"x{i}", 9)))
    assert routed_to(router.decide(arrival("r2", blocks=prompt(("p", 6), ("q", 5))), 1.0)) == "a"


def test_a_prompt_half_cached_explores() -> None:
    router = router_of()
    send(router, "a", "r1", blocks=prompt(("p", 6)))
    assert routed_to(router.decide(arrival("r2", blocks=prompt(("p", 6), ("q", 6))), 1.0)) == "b"


def test_cost_is_missed_prefill_of_the_window_plus_active_decodes() -> None:
    router = router_of("a")
    send(router, "a", "r1", blocks=prompt(("p", 10)))
    # Nothing was cached: 640 tokens missed. One active request of 45 tokens at 0.15 s.
    assert router.cost_s("a") == pytest.approx(640 * 1e-4 + 45 * 0.15)
    router.first_token("r1", "a", 1.0)
    router.ended("r1", "a", 11, 2.0)
    assert router.cost_s("a") == pytest.approx(0.064)
    send(router, "a", "r2", blocks=prompt(("p", 10)), now_s=3.0)
    # Two requests, half of their tokens missed; the mean output is 11 tokens, the median TPOT of 0.15 and 0.1 is 0.125 s.
    assert router.cost_s("a") == pytest.approx(0.5 * 2 * 0.064 + 11 * 0.125)


def test_a_node_held_twice_costs_each_holder_half() -> None:
    router = router_of()
    blocks = prompt(("p", 10))
    send(router, "a", "r1", blocks=blocks)
    send(router, "b", "r2", blocks=blocks)
    for request_id, name in (("r1", "a"), ("r2", "b")):
        router.ended(request_id, name, 0, 1.0)
    assert router.cost_s("a") == router.cost_s("b") == pytest.approx(0.064 / 2)


def test_after_three_minutes_a_prompt_is_forgotten() -> None:
    router = router_of()
    held = prompt(("p", 10))
    for request_id, blocks, now_s in (("r1", held, 0.0), ("r2", held, 0.0), ("r3", prompt(("q", 2)), 100.0)):
        send(router, "a", request_id, blocks=blocks, now_s=now_s)
        router.ended(request_id, "a", 0, now_s)
    assert router.cost_s("a") == pytest.approx((0.5 * 2 * 640 + 128) * 1e-4)
    assert routed_to(router.decide(arrival("r4", blocks=held), 180.5)) == "b", (
        "a's q is left, so b is cheaper"
    )
    assert router.cost_s("a") == pytest.approx(128e-4), "the window's requests of p are gone"


def test_a_cut_leaves_the_cost_of_what_was_charged() -> None:
    router = router_of()
    send(router, "a", "r1", blocks=prompt(("p", 6), ("q", 4)))
    before = router.cost_s("a")
    send(router, "b", "r2", blocks=prompt(("p", 6), ("r", 4)))
    router.ended("r1", "a", 0, 1.0)
    router.ended("r2", "b", 0, 1.0)
    # The charge moved to the 6 shared blocks, now held by both: two requests, 14 of 20 blocks missed.
    assert before == pytest.approx(0.064 + 45 * 0.15)
    assert router.cost_s("a") == router.cost_s("b") == pytest.approx(2 * (14 / 20) * 384e-4 / 2)


def test_an_instance_that_left_holds_nothing() -> None:
    router = router_of()
    send(router, "a", "r1", blocks=prompt(("p", 6)))
    router.left("a", 1.0)
    assert routed_to(router.decide(arrival("r2", blocks=prompt(("p", 6))), 1.0)) == "b"
