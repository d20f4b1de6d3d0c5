"""What one choice of a site costs among fifty, beside SkyWalker's rule over the same sites.

FleetMind's is everything between a request and its placement: who may serve it, what it would cost at every instance that
summaries tell of, prefixes included, leases and back-off. SkyWalker's knows of every replica whether it waits and how many
requests it has, and of prefixes what it sent there; it is asked at an entry that has nothing free. CPU time, since wall time
says little on a machine that others use. Every decision is for another prompt; the P99 over them stands in the group's
name and in `extra_info`.
"""

import random
import time
from collections.abc import Iterator
from itertools import count

import pytest
from benchmarks.decisions import DECISIONS, decide_all
from fleets import record, state
from unit.fleetmind.worlds import TENANT, capacity, granted, request, summary

from fleetmind.policy.placement import Placement, Placer
from lab.baselines.skywalker import SkyWalker
from lab.sim.api import Arrival, Route
from tokenfleet.contracts.policy import Fleet

SITES = 50
SIZES = (4, 32)
"""Instances of each site; a summary tells of 32 at most."""
P99_AT_MOST_MS = 1.0
AT_ONCE_S = 0.01
BLOCKS, SYSTEM_BLOCKS, TURN_BLOCKS = 800, 200, 40
CONVERSATIONS = 400
"""Prompts of 12,800 tokens in blocks of 16; a quarter is a system prompt that all instances hold."""


class World:
    """Fifty busy sites, each of whose instances holds some conversations."""

    def __init__(self, instances: int) -> None:
        self.instances = instances
        self.name = f"{SITES} sites of {instances}"
        self._rng = rng = random.Random(instances)
        self._system = [rng.getrandbits(63) for _ in range(SYSTEM_BLOCKS)]
        turns = BLOCKS - SYSTEM_BLOCKS
        self._conversations = [[rng.getrandbits(63) for _ in range(turns)] for _ in range(CONVERSATIONS)]
        self.held = {
            (site, number): self._held()
            for site in [f"s{number:02d}" for number in range(SITES)]
            for number in range(instances)
        }
        self.sites = sorted({site for site, _ in self.held})

    def _held(self) -> list[list[int]]:
        rng = self._rng
        chosen = rng.sample(self._conversations, 4)
        return [self._system, *(one[: TURN_BLOCKS * rng.randint(1, 12)] for one in chosen)]

    def prompts(self) -> Iterator[tuple[int, ...]]:
        rng = self._rng
        while True:
            known = rng.choice(self._conversations)[: TURN_BLOCKS * rng.randint(0, 14)]
            start = [*self._system, *known]
            yield (*start, *(rng.getrandbits(63) for _ in range(BLOCKS - len(start))))


@pytest.fixture(scope="module", params=SIZES)
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def fleetmind(world: World) -> Placer:
    rng, placer = random.Random(1), Placer(world.sites[0])
    for site in world.sites:
        placer.sites.apply(capacity(site, ready=world.instances, instances=world.instances), 0.0)
        busy_s = 2.0 if site == placer.site else 0.0
        backlog_s = [busy_s + rng.uniform(0.0, 4.0) for _ in range(world.instances)]
        told = [
            [block for held in world.held[site, number] for block in held if block % 32 == 0]
            for number in range(world.instances)
        ]
        placer.sites.summarised(summary(site, backlog_s, cached=told), 0.0)
        placer.measured_s[site] = rng.uniform(0.01, 0.2)
        granted(placer, site, 0.0, 1e6)
    return placer


def skywalker(world: World) -> SkyWalker:
    router = SkyWalker(0)
    entry = world.sites[0]
    router.network({(entry, site): 0.05 for site in world.sites}, {})
    for (site, number), held in world.held.items():
        name = f"{site}-{number}"
        registered = record(name, site=site, block_size_tokens=16)
        router.joined(registered, 0.0)
        for blocks in held:
            sent = arrival(f"{name}.{blocks[0]}", tuple(blocks), site)
            router.route(sent, name, 0.0)
            router.ended(sent.request_id, name, 1, 0.0)
        if site == entry:
            router.reading(state(name, site=site, waiting=1), 0.0)
    return router


def arrival(request_id: str, blocks: tuple[int, ...], entry: str) -> Arrival:
    spec = request(16 * len(blocks), entry_site=entry, version="v1")
    return Arrival(request_id, 0.0, "t", spec, blocks)


@pytest.mark.benchmark(timer=time.process_time)
def test_choosing_a_site(benchmark, world: World):
    placer, numbers, prompts = fleetmind(world), count(), world.prompts()
    spec = request(16 * BLOCKS, entry_site=placer.site)

    def one_more():
        number = next(numbers)
        return (f"r{number}", next(prompts), number * AT_ONCE_S / DECISIONS), {}

    def place(request_id, blocks, now_s):
        return placer.place(spec, request_id, TENANT, blocks, Fleet(), now_s)

    decide_all(benchmark, "FleetMind", world.name, P99_AT_MOST_MS, one_more, place)

    choice = place("last", next(prompts), AT_ONCE_S)
    assert isinstance(choice, Placement) and choice.site != placer.site and choice.leases


@pytest.mark.benchmark(timer=time.process_time)
def test_the_same_by_skywalkers_rule(benchmark, world: World):
    router, numbers, prompts = skywalker(world), count(), world.prompts()
    entry = world.sites[0]

    def one_more():
        number = next(numbers)
        if f"r{number - 1}" in router.requests:  # the load stays as it is
            router.ended(f"r{number - 1}", router.requests[f"r{number - 1}"].instance, 1, 0.0)
        return (arrival(f"r{number}", next(prompts), entry),), {}

    decide_all(benchmark, "SkyWalker", world.name, None, one_more, lambda asked: router.decide(asked, 0.0))

    chosen = router.decide(arrival("last", next(prompts), entry), 0.0)
    assert isinstance(chosen, Route) and not chosen.instance.startswith(entry)
