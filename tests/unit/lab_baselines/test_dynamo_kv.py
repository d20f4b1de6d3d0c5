"""NVIDIA Dynamo's cost, computed by hand."""

from unit.lab_baselines.small_fleet import arrival, fleet, prompt, routed_to, send

from lab.baselines.dynamo_kv import DynamoKv


def test_overlap_is_worth_as_many_blocks_as_active_ones_cost() -> None:
    router = fleet(DynamoKv(0), "ab")
    cached = prompt(("p", 8))
    router.blocks("a", cached, (), 0.0)
    send(router, "a", "busy", blocks=prompt(("q", 3)))
    router.first_token("busy", "a", 0.0)
    # For 8 blocks: a: max(0, 8 - 8) prefill + 3 active + 8 = 11; b: 8 + 0 + 8 = 16.
    assert routed_to(router.decide(arrival("r", blocks=cached), 0.0)) == "a"


def test_prefill_that_is_pending_counts_until_its_first_token() -> None:
    router = fleet(DynamoKv(0), "ab")
    send(router, "a", "r1", blocks=prompt(("p", 6)))
    send(router, "b", "r2", blocks=prompt(("q", 10)))
    # a: (6 + 4) prefill + 6 + 4 decode = 20; b: (10 + 4) + 10 + 4 = 28.
    assert routed_to(router.decide(arrival("r3", blocks=prompt(("n", 4))), 0.0)) == "a"
    router.ended("r3", "a", 5, 0.0)
    router.first_token("r2", "b", 1.0)
    # Now b: 4 + 10 + 4 = 18.
    assert routed_to(router.decide(arrival("r4", blocks=prompt(("n", 4))), 0.0)) == "b"


def test_blocks_shared_with_active_requests_are_counted_once() -> None:
    router = fleet(DynamoKv(0), "ab")
    shared = prompt(("p", 10))
    send(router, "a", "r1", blocks=shared)
    send(router, "b", "r2", blocks=prompt(("q", 9)))
    for request_id, name in (("r1", "a"), ("r2", "b")):
        router.first_token(request_id, name, 0.0)
    # Nothing is cached according to events. a: 10 + 10 (all shared) = 20; b: 10 + 9 + 10 = 29.
    assert routed_to(router.decide(arrival("r3", blocks=shared), 0.0)) == "a"


def test_cached_tokens_are_not_booked_as_prefill() -> None:
    router = fleet(DynamoKv(0), "a")
    router.blocks("a", prompt(("p", 6)), (), 0.0)
    router.decide(arrival("r", blocks=prompt(("p", 6), ("q", 4))), 0.0)
    assert router.loads["a"].pending_tokens == 4 * 64


def test_evicted_blocks_and_what_follows_them_no_longer_overlap() -> None:
    router = fleet(DynamoKv(0), "ab")
    cached = prompt(("p", 8))
    router.blocks("a", cached, (), 0.0)
    router.blocks("a", (), cached[:1], 0.0)
    router.blocks("b", cached[:2], (), 0.0)
    assert routed_to(router.decide(arrival("r", blocks=cached), 0.0)) == "b"
