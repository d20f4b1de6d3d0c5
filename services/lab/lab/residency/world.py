"""Small worlds of five sites in which everything goes wrong: where sites are, who may run where, what arrives, what fails.

Drawn from a seed, so that a violation can be looked at again.
"""

from collections.abc import Iterator
from random import Random

import msgspec

from lab.sim.cluster import MODEL, Cluster, Drain, Failure, InstanceSpec
from lab.sim.site_faults import Change, Clock, Cut, Late, Restart, SiteFaults
from lab.sim.workload import Submission
from lab.traces.model import TraceRequest
from tokenfleet.contracts.policy import Fleet, Rollout, Tenant
from tokenfleet.engine.profile import LLAMA70B_TP4_H100

REGIONS = {"A": "eu", "B": "eu", "C": "us", "D": "us", "E": None}
"""Where the sites are. A has no instances; E does not say where it is."""
SITES = tuple(REGIONS)
ROUND_TRIPS_S = {"A-B": 0.005, "A-C": 0.08, "A-D": 0.09, "A-E": 0.03, "B-C": 0.08, "B-D": 0.09, "B-E": 0.03}
ROUND_TRIPS_S |= {"C-D": 0.03, "C-E": 0.06, "D-E": 0.06}
TENANTS = (
    Tenant(tenant="anywhere"),
    Tenant(tenant="eu", regions=("eu",)),
    Tenant(tenant="us", regions=("us",)),
    Tenant(tenant="at-b", sites=("B",)),
    Tenant(tenant="eu-at-b-or-c", sites=("B", "C"), regions=("eu",)),
    Tenant(tenant="us-at-e", sites=("E",), regions=("us",)),
    Tenant(tenant="nowhere", regions=()),
)
SMALL = msgspec.structs.replace(
    LLAMA70B_TP4_H100,
    name="small",
    kv_capacity_tokens=32_768,
    max_running_requests=32,
    max_context_tokens=8_192,
)
OLD, NEW = "1", "2"
INSTANCES = 3
"""At each site but A, of each version: the last one of them is of the new version."""
PER_S = 300.0
"""Requests, on average: more than half of what all sites together can serve, all that those of one region can."""
TIMEOUT_S = 30.0
PREFIX_BLOCKS = 512


class World(msgspec.Struct, frozen=True):
    """One of them."""

    cluster: Cluster
    faults: SiteFaults
    work: list[Submission]


def world(seed: int, requests: int) -> World:
    """The `seed`-th, with so many requests."""
    rng = Random(seed)  # noqa: S311 - draws what happens, guards nothing
    span_s = requests / PER_S
    return World(_cluster(rng, span_s), _faults(rng, span_s), list(_work(rng, requests)))


def _cluster(rng: Random, span_s: float) -> Cluster:
    specs = [
        InstanceSpec(
            name=f"{site}-{version}-{number}",
            profile=SMALL,
            site=site,
            region=region,
            version=version,
        )
        for site, region in REGIONS.items()
        if site != "A"
        for version, count in ((OLD, INSTANCES), (NEW, 1))
        for number in range(count)
    ]
    failures: list[Failure] = []
    for spec in specs:
        at_s = rng.uniform(0.0, 2 * span_s)
        if at_s < span_s:
            failures.append(Failure(instance=spec.name, at_s=at_s, back_s=at_s + rng.uniform(3.0, 20.0)))
    # The new version is rolled out in the middle: until then its instances take nothing.
    drains = [
        Drain(instance=spec.name, at_s=0.0, back_s=rng.uniform(0.3, 0.4) * span_s)
        for spec in specs
        if spec.version == NEW
    ]
    round_trip_s: dict[tuple[str, str], float] = {}
    for pair, seconds in ROUND_TRIPS_S.items():
        one, other = pair.split("-")
        round_trip_s[one, other] = round_trip_s[other, one] = seconds
    return Cluster(
        instances=tuple(specs),
        telemetry_interval_s=0.25,
        failures=tuple(failures),
        drains=tuple(drains),
        round_trip_s=round_trip_s,
        tenants={tenant.tenant: tenant for tenant in TENANTS},
    )


def _faults(rng: Random, span_s: float) -> SiteFaults:
    """About one cut, one delay and one restart in every five seconds, each of several; clocks that are off; a roll-out."""
    times = max(3, round(span_s / 5.0))

    def when(longest_s: float) -> tuple[float, float]:
        from_s = rng.uniform(0.0, span_s)
        return from_s, from_s + rng.uniform(1.0, longest_s)

    pairs = [rng.sample(SITES, 2) for _ in range(times)]
    cuts = [Cut(site, other, *when(25.0)) for site, other in pairs]
    late = [Late(rng.choice(SITES[1:]), *when(30.0), rng.uniform(0.5, 15.0)) for _ in range(times)]
    restarts = [
        Restart(rng.choice(SITES), rng.uniform(0.0, span_s), rng.uniform(0.0, 3.0), rng.uniform(0.0, 10.0))
        for _ in range(times)
    ]
    weights = ({OLD: 1.0}, {OLD: 0.8, NEW: 0.2}, {NEW: 1.0}, {OLD: 1.0, NEW: 1.0})
    drained = ((), (), (OLD,), ())
    changes = [
        Change(
            share * span_s,
            Fleet(rollouts={MODEL: Rollout(weights=weight, drained=gone, warm_up_s=10.0)}),
            {site: rng.uniform(0.0, 10.0) for site in SITES},
        )
        for share, weight, gone in zip((0.0, 0.45, 0.6, 0.75), weights, drained, strict=True)
    ]
    return SiteFaults(
        cuts=tuple(cuts),
        late=tuple(late),
        restarts=tuple(sorted(restarts, key=lambda one: one.at_s)),
        clocks={site: Clock(rng.uniform(-1e6, 1e6), rng.uniform(0.99, 1.01)) for site in SITES},
        changes=tuple(changes),
    )


def _work(rng: Random, requests: int) -> Iterator[Submission]:
    """Bursts at one entry after the other, so that each has a reason to send requests away now and then."""
    now_s = 0.0
    for number in range(requests):
        busy = SITES[int(now_s / 6.0) % len(SITES)]
        entry = busy if rng.random() < 0.7 else rng.choice(SITES)
        now_s += rng.expovariate(PER_S * rng.choice((0.5, 1.0, 3.0)))
        tokens = rng.choice((50, 150, 400, 1_200))
        session = rng.randrange(200) * PREFIX_BLOCKS
        yield Submission(
            number=number,
            arrival_s=now_s,
            tenant=rng.choice(TENANTS).tenant,
            request=TraceRequest(
                arrival_s=now_s,
                input_tokens=tokens,
                output_tokens=rng.randint(1, 4),
                block_ids=tuple(range(session, session + -(-tokens // PREFIX_BLOCKS))),
            ),
            timeout_s=TIMEOUT_S,
            entry_site=entry,
            version=rng.choice((None, None, None, OLD, NEW)),
        )
