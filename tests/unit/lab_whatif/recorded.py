"""Recordings made by the lab itself: a simulated run told as the events and situations that a fleet would leave."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
from sim_worlds import SMALL

from lab.sim.cluster import Cluster, Failure, InstanceSpec
from lab.sim.figures import ended
from lab.sim.simulator import Simulation
from lab.sim.tokenfleet_policy import TokenFleetPolicy
from lab.sim.workload import TraceWorkload
from lab.traces.generator import generate
from lab.whatif.recording import Window, record
from lab.whatif.whatif import Asked, what_if
from tokenfleet import subjects
from tokenfleet.blocks import pack
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import Ended, Submitted, event_id
from tokenfleet.contracts.situation import InstanceGroup, Situation
from tokenfleet.event_log import LoggedEvent, Span, write_log

BEGIN_S = 1_700_000_000
SCALE = 5.0
POOL, MODEL, SITE = "llama-70b@v1", "llama-70b", "local"
BLOCK_SIZE = 16
PROFILE = msgspec.structs.replace(
    SMALL, kv_capacity_tokens=120_000, max_running_requests=24, max_context_tokens=100_000
)
BUSY = Policy(admission=False)

Messages = list[tuple[str, bytes]]


def wall_ns(engine_s: float) -> int:
    """Unix time of a moment of the simulated run."""
    return round((BEGIN_S + engine_s / SCALE) * 1e9)


def window(from_s: float = 0.0, to_s: float = 1e6, warm_up_s: float = 0.0) -> Window:
    """A window in engine seconds of the recorded run."""
    return Window(from_ns=wall_ns(from_s), to_ns=wall_ns(to_s), warm_up_ns=round(warm_up_s / SCALE * 1e9))


def situation(names: Sequence[str], at_s: float = -1.0, **changes: Any) -> Situation:
    """Instances that are all alike, at a moment of the run."""
    group = InstanceGroup(
        pool=POOL,
        profile=PROFILE,
        block_size_tokens=BLOCK_SIZE,
        kv_events=True,
        generations=dict.fromkeys(names, 1),
    )
    base = Situation(
        site=SITE,
        time_ns=wall_ns(at_s),
        time_scale=SCALE,
        groups=(group,) if names else (),
        policy=BUSY,
        telemetry_interval_s=0.02,
    )
    return msgspec.structs.replace(base, **changes)


def situations(said: Iterable[Situation]) -> Messages:
    return [(subjects.situation(one.site), msgspec.json.encode(one)) for one in said]


def run_events(
    policy: Policy = BUSY,
    *,
    requests: int = 160,
    rate_per_s: float = 1.6,
    instances: int = 4,
    failures: tuple[Failure, ...] = (),
    seed: int = 3,
    tenant: Tenant | None = None,
) -> Messages:
    """A generated conversation trace through a simulated fleet, as events."""
    trace = generate(requests, seed=seed, rate_per_s=rate_per_s)
    work = TraceWorkload(trace, 1.0, policy.request_timeout_s)
    cluster = Cluster(
        instances=tuple(InstanceSpec(name=f"i{n}", profile=PROFILE) for n in range(instances)),
        block_size=BLOCK_SIZE,
        failures=failures,
        tenants={tenant.tenant: tenant} if tenant else {},
    )
    submissions = list(work)
    outcomes = Simulation(cluster, submissions, TokenFleetPolicy(99, policy)).run().outcomes
    messages: Messages = []
    for submission, outcome in zip(submissions, outcomes, strict=True):
        arrival = outcome.arrival
        blocks = [
            block * 32 + part for block in submission.request.block_ids for part in range(512 // BLOCK_SIZE)
        ]
        spec = msgspec.structs.replace(
            arrival.spec,
            blocks=pack(blocks[: submission.request.input_tokens // BLOCK_SIZE]),
            model=MODEL,
            deadline_ns=wall_ns(arrival.time_s + policy.request_timeout_s),
            excluded_instances=(),
        )
        submitted = Submitted(
            event_id=event_id(arrival.request_id, 1, "submitted"),
            request_id=arrival.request_id,
            attempt=1,
            tenant=arrival.tenant,
            pool=MODEL,
            site=SITE,
            time_ns=wall_ns(arrival.time_s),
            request=spec,
        )
        end = msgspec.structs.replace(
            ended(outcome, policy),
            pool=POOL,
            model=MODEL,
            submitted_ns=wall_ns(arrival.time_s),
            time_ns=wall_ns(outcome.ended_s),
            time_scale=SCALE,
        )
        messages.append((subjects.request(SITE, MODEL, "submitted"), msgspec.json.encode(submitted)))
        messages.append((subjects.request(SITE, POOL, end.outcome), msgspec.json.encode(end)))
    return messages


def changed(messages: Messages, request_id: str, **changes: Any) -> Messages:
    """The same events with another end of one request."""
    made: Messages = []
    for subject, data in messages:
        if subject.rpartition(".")[2] != "submitted":
            end = msgspec.json.decode(data, type=Ended)
            if end.request_id == request_id:
                end = msgspec.structs.replace(end, **changes)
                subject, data = subjects.request(SITE, POOL, end.outcome), msgspec.json.encode(end)
        made.append((subject, data))
    return made


def compare(messages: Messages, asked: Asked | None = None, of: Window | None = None):
    """A what-if of messages, in one process and without a progress bar."""
    recording = record(of or window(), messages)
    return what_if(
        recording, asked or Asked(seeds=2, processes=1), lambda _: nullcontext(lambda doing, count: None)
    )


def write_file(path: Path, messages: Messages) -> Path:
    """The messages as an exported file."""
    logged = (
        LoggedEvent(subject=subject, time_ns=1, sequence=number, data=data)
        for number, (subject, data) in enumerate(messages, 1)
    )
    write_log(path, logged, Span(from_ns=0, to_ns=2))
    return path
