"""A scenario and a seed made into a cluster and what arrives there."""

from collections.abc import Callable, Sequence
from math import cos, pi

import msgspec
import numpy as np
import numpy.typing as npt

from lab.errors import ScenarioError
from lab.scenarios.load import profile_of
from lab.scenarios.model import Regions, Scenario, Step, tenant_name
from lab.scenarios.offered import batch_lines, dealt, flooded
from lab.sim.cluster import Cluster, Failure, InstanceSpec, Slowdown
from lab.sim.timing import timed
from lab.sim.workload import DEFAULT_TENANT, Submission, TraceWorkload, Workload
from lab.traces.model import Trace
from tokenfleet.contracts.policy import Policy, Tenant

Floats = npt.NDArray[np.float64]

GRID = 20_000
"""Points at which a varying rate is added up."""


def cluster_of(scenario: Scenario, seed: int) -> Cluster:
    """The engines of a scenario, named by site and number: `B-0`, `B-1`, ...

    Args:
        scenario: what is asked for.
        seed: for what is drawn: how far engines are from their profiles.

    Raises:
        ScenarioError: an instance that is to fail or to slow down is none of them.
    """
    instances: list[InstanceSpec] = []
    count: dict[str, int] = {}
    for pool in scenario.pools:
        profile = profile_of(scenario, pool)
        for _ in range(pool.instances):
            number = count.get(pool.site, 0)
            count[pool.site] = number + 1
            instances.append(
                InstanceSpec(
                    name=f"{pool.site}-{number}",
                    profile=profile,
                    site=pool.site,
                    version=pool.version,
                    kv_events=pool.kv_events,
                )
            )
    if scenario.profile_error:
        instances = _off_profile(instances, scenario, seed)
    names = [spec.name for spec in instances]
    drift = scenario.drift
    meant = [(death.instance, "fail") for death in scenario.failures]
    for name, fate in [*meant, *([(drift.instance, "slow down")] if drift else [])]:
        if name not in names:
            raise ScenarioError(
                f"{scenario.name}: {name} is to {fate}, but the instances are {', '.join(names)}"
            )
    round_trip_s: dict[tuple[str, str], float] = {}
    for pair, milliseconds in scenario.round_trips_ms.items():
        one, other = pair.split("-")
        round_trip_s[one, other] = round_trip_s[other, one] = milliseconds / 1000
    return Cluster(
        instances=tuple(instances),
        block_size=scenario.block_size_tokens,
        telemetry_interval_s=scenario.telemetry_interval_s,
        telemetry_delay_s=scenario.telemetry_delay_s,
        failures=tuple(Failure(**msgspec.structs.asdict(death)) for death in scenario.failures),
        slowdowns=(Slowdown(**msgspec.structs.asdict(drift)),) if drift else (),
        round_trip_s=round_trip_s,
        tenants=_tenants(scenario),
    )


def workload_of(scenario: Scenario, trace: Trace, speed: float, seed: int) -> Workload:
    """What arrives: the trace at a speed, with the scenario's entries, tenants, versions and changes of rate.

    Raises:
        TraceError: the trace of its batch lines cannot be read.
    """
    timeout_s = Policy().request_timeout_s
    plain = TraceWorkload(trace, speed, timeout_s)
    entry_site = scenario.entry_site or scenario.sites[0]
    changed = scenario.steps or scenario.regions or scenario.tenants or scenario.pinned or scenario.batch
    if not changed:
        return plain if entry_site == "local" else _entering(plain, entry_site)
    submissions = list(plain)
    if scenario.steps:
        span_s = submissions[-1].arrival_s if submissions else 0.0
        submissions = _warped(submissions, _steps(scenario.steps, span_s), span_s)
    if scenario.regions:
        submissions = _regional(submissions, scenario.regions)
    else:
        submissions = list(_entering(submissions, entry_site))
    if scenario.tenants:
        count = scenario.tenants.count
        submissions = [
            msgspec.structs.replace(
                submission, tenant=tenant_name(dealt(submission.request, count, "tenant"))
            )
            for submission in submissions
        ]
        if scenario.flood:
            submissions = flooded(submissions, scenario.flood, count)
    if scenario.batch:
        lines = batch_lines(scenario.batch, submissions, seed)
        submissions = lines if scenario.batch.alone else [*submissions, *lines]
    if scenario.pinned:
        draws = np.random.default_rng(seed).random(len(submissions))
        submissions = [
            msgspec.structs.replace(submission, version=scenario.pinned.version)
            if draw < scenario.pinned.share
            else submission
            for submission, draw in zip(submissions, draws, strict=True)
        ]
    return [
        msgspec.structs.replace(submission, number=number)
        for number, submission in enumerate(sorted(submissions, key=lambda one: one.arrival_s))
    ]


def step_times_s(scenario: Scenario, trace: Trace, speed: float) -> tuple[float, ...]:
    """When the scenario's steps change the load, in order."""
    span_s = trace.requests[-1].arrival_s / speed if trace.requests else 0.0
    edges = {edge for step in scenario.steps for edge in (step.from_share, step.to_share)}
    return tuple(edge * span_s for edge in sorted(edges))


def _entering(submissions: Workload, site: str) -> list[Submission]:
    return [msgspec.structs.replace(submission, entry_site=site) for submission in submissions]


def _off_profile(instances: Sequence[InstanceSpec], scenario: Scenario, seed: int) -> list[InstanceSpec]:
    error = scenario.profile_error
    factors = np.random.default_rng(seed).uniform(1 - error, 1 + error, (len(instances), 2))
    specs: list[InstanceSpec] = []
    for spec, (prefill, step) in zip(instances, factors.tolist(), strict=True):
        real = timed(spec.profile, prefill=prefill, step=step)
        registered = real if scenario.profile_error_registered else spec.profile
        specs.append(msgspec.structs.replace(spec, profile=registered, real_profile=real))
    return specs


def _tenants(scenario: Scenario) -> dict[str, Tenant]:
    tenants = scenario.tenants
    if tenants is None:
        return {}
    confined = round(tenants.count * tenants.confined_share)
    listed = [
        Tenant(
            tenant=tenant_name(number),
            weight=tenants.weights[number] if number < len(tenants.weights) else 1.0,
            sites=(tenants.confined_to,) if number < confined else None,
        )
        for number in range(tenants.count)
    ]
    return {tenant.tenant: tenant for tenant in (*listed, Tenant(tenant=DEFAULT_TENANT))}


def _regional(submissions: Sequence[Submission], regions: Regions) -> list[Submission]:
    """Each session enters at one site; each site's arrivals are moved in time so that its rate swings."""
    span_s = max((submission.arrival_s for submission in submissions), default=0.0)
    entering: list[Submission] = []
    for number, site in enumerate(regions.sites):
        phase = 2 * pi * number / len(regions.sites)
        own = [
            msgspec.structs.replace(submission, entry_site=site)
            for submission in submissions
            if dealt(submission.request, len(regions.sites), "region") == number
        ]
        entering += _warped(own, _swing(regions.amplitude, phase, span_s), span_s)
    return entering


def _warped(
    submissions: Sequence[Submission], rate: Callable[[float], float], span_s: float
) -> list[Submission]:
    """Arrivals moved in time, their order kept, so that the rate is what it was times `rate(seconds)`."""
    if span_s <= 0:
        return list(submissions)
    # Long enough for a rate below its mean at first; beyond the grid the last rate goes on.
    grid = np.linspace(0.0, 2 * span_s, GRID)
    rates = np.array([rate(float(time)) for time in grid])
    passed = np.concatenate([[0.0], np.cumsum((rates[1:] + rates[:-1]) / 2 * np.diff(grid))])
    times = np.interp([submission.arrival_s for submission in submissions], passed, grid)
    return [
        msgspec.structs.replace(submission, arrival_s=float(time))
        for submission, time in zip(submissions, times, strict=True)
    ]


def _swing(amplitude: float, phase: float, period_s: float) -> Callable[[float], float]:
    return lambda time_s: 1.0 + amplitude * cos(2 * pi * time_s / period_s + phase)


def _steps(steps: Sequence[Step], span_s: float) -> Callable[[float], float]:
    def rate(time_s: float) -> float:
        factor = 1.0
        for step in steps:
            if step.from_share * span_s <= time_s < step.to_share * span_s:
                factor *= step.factor
        return factor

    return rate
