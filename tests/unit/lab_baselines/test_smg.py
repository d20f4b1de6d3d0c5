"""SMG's two policies, on fleets small enough to compute by hand."""

from unit.lab_baselines.small_fleet import arrival, fleet, prompt, read, routed_to, send

from lab.baselines.smg_cache_aware import SmgCacheAware
from lab.baselines.smg_least_load import PUBLISHED_POLL_S, SmgLeastLoad


def test_more_than_the_threshold_matched_goes_to_its_holder() -> None:
    router = fleet(SmgCacheAware(0))
    send(router, "b", "r1", blocks=prompt(("p", 4)))
    # 4 of 13 blocks are 0.308 of the prompt; b's tree is the largest and its queue the longest.
    matched = arrival("r2", blocks=prompt(("p", 4), ("new", 9)))
    assert routed_to(router.decide(matched, 0.0)) == "b"


def test_less_than_the_threshold_goes_to_the_smallest_tree() -> None:
    router = fleet(SmgCacheAware(0))
    send(router, "a", "r1", blocks=prompt(("x", 2)))
    send(router, "b", "r2", blocks=prompt(("p", 4)))
    send(router, "c", "r3", blocks=prompt(("y", 9)))
    # 4 of 14 blocks are 0.286; the trees hold 2, 4 and 9 blocks.
    assert routed_to(router.decide(arrival("r4", blocks=prompt(("p", 4), ("new", 10))), 0.0)) == "a"


def test_as_released_less_than_the_threshold_goes_to_the_shortest_queue() -> None:
    router = fleet(SmgCacheAware(0, smallest_tree=False))
    send(router, "a", "r1", blocks=prompt(("x", 2)))
    send(router, "b", "r2", blocks=prompt(("y", 9)))
    send(router, "c", "r3", blocks=prompt(("z", 20)))
    router.ended("r3", "c", 5, 0.0)
    assert routed_to(router.decide(arrival("r4", blocks=prompt(("new", 10))), 0.0)) == "c"


def test_out_of_balance_the_shortest_queue_wins_over_the_prefix() -> None:
    router = fleet(SmgCacheAware(0))
    held = prompt(("p", 10))
    for i in range(64):
        send(router, "a", f"r{i}", blocks=held)
    balanced = arrival("q1", blocks=held)
    assert routed_to(router.decide(balanced, 0.0)) == "a", "64 more than none is not above 64"
    assert routed_to(router.decide(arrival("q2", blocks=held), 0.0)) == "b", "65 is, and above 1.5 times none"


def test_least_load_is_drain_time_plus_kv_barrier() -> None:
    router = fleet(SmgLeastLoad(0))
    send(router, "a", "r1", 1_000)
    send(router, "b", "r2", 3_000)
    read(router, "a", kv=0.9)
    read(router, "b", kv=0.0)
    read(router, "c", kv=0.95)
    # a: 1000/2000 + 0.15*9 = 1.85; b: 3000/2000 = 1.5; c: 0.15*19 = 2.85 s.
    assert routed_to(router.decide(arrival("r3", 64), 0.0)) == "b"


def test_what_was_dispatched_since_the_poll_counts() -> None:
    router = fleet(SmgLeastLoad(0), "ab")
    read(router, "a", kv=0.1)
    read(router, "b", kv=0.2)
    # a leads by 0.15 * (0.25 - 0.111) = 0.021 s, which are 42 tokens.
    assert routed_to(router.decide(arrival("r1", 41), 0.0)) == "a"
    assert routed_to(router.decide(arrival("r2", 41), 0.0)) == "a"
    assert routed_to(router.decide(arrival("r3", 41), 0.0)) == "b"


def test_a_first_token_takes_a_prompt_off_the_queue_with_the_next_reading() -> None:
    router = fleet(SmgLeastLoad(0), "ab")
    send(router, "a", "r1", 5_000)
    send(router, "b", "r2", 1_000)
    router.first_token("r1", "a", 0.1)
    assert routed_to(router.decide(arrival("r3", 64), 0.1)) == "b"
    read(router, "a", 0.2)
    assert routed_to(router.decide(arrival("r4", 64), 0.2)) == "a"


def test_polled_as_published_a_reading_within_ten_seconds_is_not_seen() -> None:
    router = fleet(SmgLeastLoad(0, poll_s=PUBLISHED_POLL_S), "ab")
    read(router, "a", 0.0, kv=0.0)
    read(router, "b", 0.0, kv=0.5)
    read(router, "a", 9.9, kv=0.9)
    assert routed_to(router.decide(arrival("r1", 1), 9.9)) == "a"
    read(router, "a", 10.0, kv=0.9)
    assert routed_to(router.decide(arrival("r2", 1), 10.0)) == "b"
