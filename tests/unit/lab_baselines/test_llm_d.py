"""llm-d's default scorers, its approximate prefixes and its flow control."""

from unit.lab_baselines.small_fleet import arrival, fleet, prompt, read, record, routed_to, send

from lab.baselines.llm_d import LlmD
from lab.baselines.llm_d_flow_control import LlmDFlowControl
from lab.baselines.llm_d_prefix import ApproximatePrefixes, producer_blocks
from lab.sim.api import Hold, Refuse, Released, Route


def test_the_score_is_two_queue_two_kv_three_prefix() -> None:
    router = fleet(LlmD(0))
    send(router, "c", "r1", blocks=prompt(("p", 5)))
    read(router, "a", waiting=4, kv=0.1)
    read(router, "b", waiting=2, kv=0.3)
    read(router, "c", waiting=8, kv=0.5)
    share = router.prefix_shares(arrival("r2", blocks=prompt(("p", 5), ("q", 5))))
    assert share == {"c": 0.5}
    scores = router.scores("abc", share, 2, 2, 3)
    # Queue: a (8-4)/6, b 1, c 0.
    assert scores == {"a": 2 * 4 / 6 + 1.8, "b": 2 + 1.4, "c": 0 + 1.0 + 1.5}
    assert routed_to(router.decide(arrival("r2", blocks=prompt(("p", 5), ("q", 5))), 0.0)) == "b"


def test_a_whole_prefix_outweighs_a_longer_queue() -> None:
    router = fleet(LlmD(0), "ab")
    held = prompt(("p", 5))
    send(router, "b", "r1", blocks=held)
    read(router, "a", waiting=0)
    read(router, "b", waiting=50)
    # a: 2 + 2; b: 0 + 2 + 3.
    assert routed_to(router.decide(arrival("r2", blocks=held), 0.0)) == "b"


def test_equal_queues_all_score_one_and_ties_are_drawn() -> None:
    router = fleet(LlmD(0), "ab")
    for name in "ab":
        read(router, name, waiting=7)
    assert router.scores("ab", {}, 2, 0, 0) == {"a": 2.0, "b": 2.0}
    chosen = {routed_to(router.decide(arrival(f"r{i}", 64), 0.0)) for i in range(20)}
    assert chosen == {"a", "b"}


def test_small_engine_blocks_are_joined_to_64_tokens() -> None:
    request = arrival("r", blocks=prompt(("p", 11)))
    spec = request.spec
    sixteen = request._replace(spec=type(spec)(**{**_fields(spec), "block_size_tokens": 16}))
    assert producer_blocks(sixteen) == (request.blocks[3], request.blocks[7])
    assert producer_blocks(request) == request.blocks


def _fields(spec: object) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}  # type: ignore[attr-defined]


def test_the_first_block_of_the_oldest_prompt_is_evicted_first() -> None:
    prefixes = ApproximatePrefixes()
    prefixes.add_instance(record("a"))  # 1,000 blocks
    old, new = prompt(("old", 600)), prompt(("new", 401))
    prefixes.routed(old, "a")
    prefixes.routed(new, "a")
    assert prefixes.matches(old) == {}, "its first block went, so the walk ends there"
    assert prefixes.matches(old[1:]) == {"a": 599}
    assert prefixes.matches(new) == {"a": 401}


def test_matches_tell_instances_apart_and_a_dropped_one_is_forgotten() -> None:
    prefixes = ApproximatePrefixes()
    for name in "ab":
        prefixes.add_instance(record(name))
    prefixes.routed(prompt(("p", 3)), "a")
    prefixes.routed(prompt(("p", 3), ("q", 2)), "b")
    asked = prompt(("p", 3), ("q", 2), ("r", 4))
    assert prefixes.matches(asked) == {"a": 3, "b": 5}
    prefixes.drop_instance("b")
    prefixes.add_instance(record("c"))
    assert prefixes.matches(asked) == {"a": 3}


def saturated() -> LlmDFlowControl:
    router = fleet(LlmDFlowControl(0), "ab")
    assert isinstance(router, LlmDFlowControl)
    read(router, "a", 0.0, waiting=10)
    read(router, "b", 0.0, kv=0.1)
    return router


def test_saturation_is_the_mean_of_the_worse_of_queue_and_kv() -> None:
    router = fleet(LlmDFlowControl(0), "ab")
    assert isinstance(router, LlmDFlowControl)
    read(router, "a", 0.0, waiting=1, kv=0.4)
    read(router, "b", 0.0, waiting=4, kv=0.4)
    assert router.saturation("ab", 0.0) == (0.5 + 0.8) / 2
    read(router, "b", 0.25, waiting=4)
    assert router.saturation("ab", 0.25) == (1.0 + 0.8) / 2, "a has not been heard of for over 200 ms"


def test_while_saturated_requests_wait_and_leave_in_order() -> None:
    router = saturated()
    assert isinstance(router.decide(arrival("r1", 64), 0.0), Hold)
    read(router, "b", 0.1, kv=0.1)
    assert list(router.release(0.1)) == [], "(10/5 + 0.125) / 2 is above 1"
    read(router, "a", 0.1, waiting=0)
    assert isinstance(router.decide(arrival("r2", 64), 0.1), Hold), "behind one that waits already"
    first = list(router.release(0.1))
    assert [released.request_id for released in first] == ["r1"], "one in a millisecond"
    assert list(router.release(0.1005)) == []
    assert [released.request_id for released in router.release(0.101)] == ["r2"]


def test_after_sixty_seconds_in_the_queue_it_is_refused() -> None:
    router = saturated()
    router.decide(arrival("r1", 64), 0.0)
    assert list(router.release(59.9)) == []
    assert list(router.release(60.0)) == [Released("r1", Refuse(429, "flow_control_ttl"))]


def test_a_request_nobody_waits_for_any_more_leaves_the_queue_unrouted() -> None:
    router = saturated()
    router.decide(arrival("gone", 64, deadline_s=5.0), 0.0)
    router.decide(arrival("here", 64), 0.0)
    read(router, "a", 6.0)
    read(router, "b", 6.0)
    released = list(router.release(6.0))
    assert [one.request_id for one in released] == ["here"]
    assert isinstance(released[0].decision, Route)
