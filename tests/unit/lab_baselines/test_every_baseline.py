"""What holds for every baseline: reproducible by seed, keeps to what a request may use, forgets what ended."""

from random import Random

import pytest
from unit.lab_baselines.small_fleet import arrival, fleet, prompt, read, record, routed_to

from lab.baselines import REGISTRY
from lab.baselines.common import Router
from lab.sim.api import Hold, Refuse, Route

EVERY = pytest.mark.parametrize("name", REGISTRY)


def drive(router: Router, requests: int = 150, dead: float = 0.01) -> list[str]:
    """A busy hour in small: arrivals, first tokens, ends, readings, KV events, an instance that dies and returns.

    Returns what became of each request; at the end all have ended.
    """
    random = Random(7)
    fleet(router, "abcd", d="y")
    decided: list[str] = []
    running: dict[str, tuple[str, bool]] = {}
    now_s = 0.0

    def took(request_id: str, decision: object) -> None:
        decided.append(f"{request_id} {decision}")
        if isinstance(decision, Route):
            running[request_id] = (decision.instance, False)

    def settle() -> None:
        for released in router.release(now_s):
            took(released.request_id, released.decision)

    for number in range(requests):
        now_s += 0.2
        for name in router.loads:
            here = [first for instance, first in running.values() if instance == name]
            read(router, name, now_s, waiting=here.count(False), running=here.count(True), kv=len(here) / 20)
        blocks = prompt((f"session{random.randrange(12)}", 20), (f"turn{number}", random.randrange(30)))
        request = arrival(f"r{number}", len(blocks) * 64 + 5, blocks, entry=random.choice("xy"))
        took(request.request_id, router.decide(request, now_s))
        settle()
        for request_id, (instance, first) in list(running.items()):
            if random.random() < 0.3:
                if first:
                    del running[request_id]
                    router.ended(request_id, instance, 20, now_s)
                else:
                    running[request_id] = (instance, True)
                    router.first_token(request_id, instance, now_s)
                    router.blocks(instance, prompt(("session1", 20)), (), now_s)
                settle()
        if number == requests // 2:
            router.left("a", now_s)
            running = {id_: at for id_, at in running.items() if at[0] != "a"}
            router.joined(record("a", generation=2), now_s)
    while running or router.release(now_s):
        now_s += 1.0
        for name in router.loads:
            read(router, name, now_s)
        settle()
        for request_id, (instance, _) in list(running.items()):
            del running[request_id]
            router.ended(request_id, instance, 20, now_s)
    return decided


@EVERY
def test_the_same_seed_decides_the_same(name: str) -> None:
    assert drive(REGISTRY[name](3)) == drive(REGISTRY[name](3))


@EVERY
def test_nothing_is_kept_of_requests_that_ended(name: str) -> None:
    router = REGISTRY[name](0)
    drive(router)
    assert not router.requests
    for load in router.loads.values():
        assert (load.requests, load.pending_tokens, load.decoding_tokens) == (0, 0, 0)
        assert not load.pending and not load.decoding
    kept = [
        key
        for value in vars(router).values()
        if isinstance(value, dict)
        for key in value
        if str(key).startswith("r")
    ]
    assert not kept, "no table of the router may still know a request"


@EVERY
def test_every_request_is_decided_once(name: str) -> None:
    ids = [line.split()[0] for line in drive(REGISTRY[name](0)) if "Hold" not in line]
    assert len(ids) == len(set(ids)) == 150


@EVERY
def test_only_what_a_request_may_use_is_chosen(name: str) -> None:
    router = REGISTRY[name](0)
    router.joined(record("a"), 0.0)
    router.joined(record("b", version="2"), 0.0)
    router.joined(record("c", draining=True), 0.0)
    router.joined(record("d"), 0.0)
    for instance in "abcd":
        read(router, instance)
    for number in range(5):
        request = arrival(f"r{number}", 640, prompt((f"p{number}", 10)), version="1", excluded=("d",))
        assert routed_to(router.decide(request, 0.0)) == "a"
        router.ended(f"r{number}", "a", 10, 0.0)


@EVERY
def test_without_a_usable_instance_the_answer_is_503(name: str) -> None:
    router = fleet(REGISTRY[name](0), "a")
    assert router.decide(arrival("r", 64, excluded=("a",)), 0.0) == Refuse(503, "no_ready_instance")


@EVERY
def test_a_prompt_shorter_than_a_block_is_routed(name: str) -> None:
    router = fleet(REGISTRY[name](0))
    for instance in "abc":
        read(router, instance)
    assert not isinstance(router.decide(arrival("r", 5), 0.0), Hold | Refuse)


@EVERY
def test_a_late_end_of_a_failed_attempt_does_not_end_the_next(name: str) -> None:
    router = fleet(REGISTRY[name](0), "ab")
    for instance in "ab":
        read(router, instance)
    first = routed_to(router.decide(arrival("r", 640), 0.0))
    router.ended("r", first, 0, 1.0)
    read(router, "a", 1.0)
    read(router, "b", 1.0)
    second = routed_to(router.decide(arrival("r", 640, excluded=(first,)), 1.0))
    router.ended("r", first, 0, 1.1)
    assert router.loads[second].requests == 1
