"""Random, round robin, least requests, power of two, and the session hash."""

from collections import Counter

from unit.lab_baselines.small_fleet import arrival, fleet, prompt, record, routed_to, send

from lab.baselines.simple import LeastRequests, PowerOfTwo, RandomChoice, RoundRobin
from lab.baselines.vllm_consistent_hash import VllmConsistentHash


def test_round_robin_takes_turns_in_order_of_names() -> None:
    router = fleet(RoundRobin(0), "cab")
    assert [routed_to(router.decide(arrival(f"r{i}", 64), 0.0)) for i in range(5)] == list("abcab")


def test_random_takes_all_about_equally() -> None:
    router = fleet(RandomChoice(0))
    counts = Counter(routed_to(router.decide(arrival(f"r{i}", 64), 0.0)) for i in range(3_000))
    assert all(900 < counts[name] < 1_100 for name in "abc")


def test_least_requests_counts_what_has_not_ended() -> None:
    router = fleet(LeastRequests(0))
    send(router, "a", "r1")
    send(router, "b", "r2")
    send(router, "c", "r3")
    router.first_token("r2", "b", 1.0)
    router.ended("r3", "c", 5, 1.0)
    assert routed_to(router.decide(arrival("r4", 64), 1.0)) == "c", "a first token is no end"


def test_least_requests_draws_ties() -> None:
    chosen = {routed_to(fleet(LeastRequests(seed)).decide(arrival("r", 64), 0.0)) for seed in range(30)}
    assert chosen == set("abc")


def test_power_of_two_never_takes_the_most_loaded_of_three() -> None:
    router = fleet(PowerOfTwo(0))
    for i in range(5):
        send(router, "b", f"busy{i}")
    for i in range(100):
        chosen = routed_to(router.decide(arrival(f"r{i}", 64), 0.0))
        assert chosen != "b", "whichever it is drawn with has fewer"
        router.ended(f"r{i}", chosen, 1, 0.0)


def test_a_session_stays_where_its_first_turn_went() -> None:
    router = fleet(VllmConsistentHash(0))
    first = prompt(("system", 8), ("session1", 8))
    where = routed_to(router.decide(arrival("r1", blocks=first), 0.0))
    later = (*first, *prompt(("turn", 40)))
    assert routed_to(router.decide(arrival("r2", blocks=later), 0.0)) == where


def test_sessions_spread_and_few_move_when_an_instance_joins() -> None:
    router = fleet(VllmConsistentHash(0), "abcd")

    def homes() -> list[str]:
        requests = [arrival(f"r{i}", blocks=prompt((f"s{i}", 16))) for i in range(400)]
        return [routed_to(router.decide(request, 0.0)) for request in requests]

    before = homes()
    assert all(60 < before.count(name) < 140 for name in "abcd")
    router.joined(record("e"), 0.0)
    after = homes()
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {"e"}, "nobody moves between those that were there"
    assert 40 < len(moved) < 130


def test_a_session_whose_instance_may_not_be_used_goes_to_the_first_that_may() -> None:
    router = fleet(VllmConsistentHash(0))
    blocks = prompt(("s", 16))
    home = routed_to(router.decide(arrival("r1", blocks=blocks), 0.0))
    others = sorted(set("abc") - {home})
    assert routed_to(router.decide(arrival("r2", blocks=blocks, excluded=(home,)), 0.0)) == others[0]
