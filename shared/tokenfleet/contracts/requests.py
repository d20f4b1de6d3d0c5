"""A request's life: `submitted -> placed -> [queued ->] admitted | refused -> routed -> first_token -> <outcome>`.

Ingress owns a request, so it alone publishes the outcome (`Ended`), exactly one per request, with everything
the ledger needs. `Refused` is a decider's answer to an ingress; `rejected` is the outcome that follows. `lost` stands for
a request whose ingress never said how it ended.
"""

from typing import Any, Literal, TypeVar

import msgspec

from tokenfleet.contracts.fleet import IndexQuality
from tokenfleet.contracts.sites import Lease

SCHEMA = 1

Outcome = Literal["completed", "rejected", "timed_out", "cancelled", "failed", "lost"]


class Objective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one request was promised, in engine seconds. An absent term is not gated."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def declared(self) -> bool:
        """Whether there is any promise to meet."""
        return self.ttft_s is not None or self.tpot_s is not None or self.e2e_s is not None


class RequestSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What deciders may know of a request. Never its text: only lengths and keyed block hashes."""

    model: str
    version: str | None = None
    adapter: str | None = None
    """The adapter (LoRA) that it asks for beside the model."""
    entry_site: str
    sites: tuple[str, ...] | None = None
    """Sites it may run on; None: all. With `regions`, what its ingress knew of its tenant: law for every decider."""
    regions: tuple[str, ...] | None = None
    """Regions it may run in, its tenant's narrowed by what it asked for itself; None: all."""
    ingress: str
    input_tokens: int
    max_output_tokens: int
    block_size_tokens: int
    blocks: bytes = b""
    """Keyed hashes of the prompt's full blocks, 8 bytes each (see `tokenfleet.blocks`)."""
    stream: bool = False
    task: str | None = None
    service_tier: str | None = None
    """The tier in force: what the client asked for, bounded by its tenant's."""
    objective: Objective | None = None
    """What the client asked for in headers, before its class bounds it."""
    fairness_id: str | None = None
    """Whom within its tenant the request is for: a tenant's share is divided among these."""
    queue_ttl_s: float | None = None
    """How long it may wait in a queue, in engine seconds."""
    deadline_ns: int = 0
    """Unix time after which nobody waits for the answer any more."""
    due_ns: int = 0
    """Unix time by which a batch is to be done: its lines are promoted as this comes near."""
    excluded_instances: tuple[str, ...] = ()
    """Instances that already failed this request."""
    client_request_id: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every fact about a request carries."""

    event_id: str
    request_id: str
    attempt: int
    tenant: str
    pool: str
    site: str
    time_ns: int
    request_class: str | None = msgspec.field(default=None, name="class")
    schema: int = SCHEMA


class Submitted(Event, frozen=True, kw_only=True):
    """Ingress accepted a request and asks for decisions. `pool` is the model's name until one is placed."""

    request: RequestSpec


class Weighed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pool of one site as FleetMind saw it when placing; `out` says why the request did not go there.

    Times are engine seconds. What was not worked out, because the request may not go there or nothing is known of its load,
    is None.
    """

    site: str
    pool: str
    cost_s: float | None = None
    """Latency and what is counted beside it; the least wins (docs/adr/0015-placement-across-sites.md)."""
    predicted_ttft_s: float | None = None
    """`way_s` included."""
    way_s: float | None = None
    """Round trips and the transfer of the prompt."""
    work_s: float | None = None
    """Its own prefill there."""
    reused_tokens: int = 0
    out: str | None = None


class Placed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """FleetMind chose the site and the pool (both in the event's own fields)."""

    request: RequestSpec
    reason: str
    weighed: tuple[Weighed, ...] = ()
    """The pools it was chosen from: the cheapest first, then those that were out of the question."""
    out: dict[str, int] = {}
    """How many pools the request could not or should not go to, by reason, shown or not."""
    leases: tuple[Lease, ...] = ()
    """Of the capacity that its site granted to where it comes from; none at its own site."""


class Queued(Event, frozen=True, kw_only=True):
    """SLOMax keeps the request until the pool can start it soon; said again while that lasts."""

    reason: str
    position: int
    """Requests of its class that are before it."""
    expected_start_s: float
    """Engine seconds from now."""
    valid_s: float
    """Wall seconds within which this is said again; silence after that means that its decider is gone."""
    timeout_s: float | None = None
    """As in `Admitted`."""


class Admitted(Event, frozen=True, kw_only=True):
    """SLOMax lets the request run, in this class and with this promise."""

    request: RequestSpec
    objective: Objective
    reason: str
    class_reason: str = ""
    """Why it belongs to its class."""
    queue_wait_s: float = 0.0
    """Engine seconds it was held."""
    kept_free: tuple[str, ...] = ()
    """Instances that are kept free for other requests: to be used only where there is no other."""
    timeout_s: float | None = None
    """Its class's, in engine seconds since it was submitted; None: the policy's `request_timeout_s`."""
    predicted_ttft_s: float | None = None


class Refused(Event, frozen=True, kw_only=True):
    """A decider's answer: not now (429), not ever here (404) or nothing ready (503)."""

    status: int
    reason: str
    message: str
    retry_after_s: float | None = None
    objective: Objective | None = None
    weighed: tuple[Weighed, ...] = ()
    """Where FleetMind refuses: the pools of the model, and why each cannot take the request."""
    out: dict[str, int] = {}


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One instance as TokenPilot saw it when deciding; `filtered` says why it was out, if it was.

    Times are engine seconds. What was not worked out, because the instance could not win any more, is None.
    """

    instance: str
    cost_s: float | None = None
    """Its own latency and the harm to others; the least wins (docs/adr/0008-expected-cost.md)."""
    predicted_ttft_s: float | None = None
    predicted_tpot_s: float | None = None
    backlog_s: float | None = None
    """Until the prefills ahead of it are done."""
    kv_wait_s: float | None = None
    """Until there is KV room for it."""
    own_prefill_s: float | None = None
    expected_misses: float | None = None
    """Requests there that it is expected to push over their objective."""
    reused_tokens: int = 0
    offloaded_tokens: int = 0
    """Of the reused, those to be restored from host memory or disk."""
    decoding: int = 0
    pending: int = 0
    """Routed there and without a first token."""
    running: int = 0
    """As telemetry had it, with requests that TokenPilot was never told of; so is `waiting`."""
    waiting: int = 0
    kv_usage: float | None = None
    telemetry_age_s: float | None = None
    index: IndexQuality | None = None
    filtered: str | None = None


class Routed(Event, frozen=True, kw_only=True):
    """TokenPilot chose the instance. Its address comes from the registry, never from this event."""

    instance: str
    generation: int
    input_tokens: int
    reused_tokens: int
    predicted_ttft_s: float | None = None
    """The median of what is expected, in engine seconds."""
    predicted_ttft_p90_s: float | None = None
    predicted_tpot_s: float | None = None
    predicted_tpot_p90_s: float | None = None
    expected_output_tokens: float | None = None
    previous_output_tokens: int | None = None
    """Of the answer before in the same conversation, where it is known: what the expectation rests on."""
    max_output_tokens: int = 0
    stream: bool = True
    """Whether its first token will be told: of an answer that is not streamed it is not."""
    objective: Objective | None = None
    draw: float = 0.0
    """The random number that broke ties, so that the decision can be repeated."""
    reason: str
    candidates: tuple[Candidate, ...] = ()
    """The best of them, best first, then some of those filtered."""
    considered: int = 0
    """How many instances there were, shown or not."""
    filtered: dict[str, int] = {}
    """How many could not take the request, by reason."""


class FirstToken(Event, frozen=True, kw_only=True):
    """The engine's first chunk reached ingress."""

    instance: str
    ttft_s: float


class Retried(Event, frozen=True, kw_only=True):
    """An attempt failed before any token was sent; another attempt follows."""

    instance: str | None
    reason: str
    input_tokens: int
    output_tokens: int = 0


class Ended(Event, frozen=True, kw_only=True):
    """The one terminal fact of a request. Durations are engine seconds since it was submitted."""

    outcome: Outcome
    reason: str
    """Machine-readable: stop, length, client_disconnected, deadline, engine_error, admission_slack, ..."""
    status: int
    model: str
    stream: bool
    submitted_ns: int
    e2e_s: float
    admitted: bool = False
    degraded: bool = False
    """Routed by ingress alone because no decider answered in time."""
    instance: str | None = None
    objective: Objective | None = None
    input_tokens: int = 0
    reused_tokens: int = 0
    output_tokens: int = 0
    tokens_exact: bool = True
    """False when the counts are estimates (the engine's usage never arrived)."""
    queue_wait_s: float | None = None
    """Of `ttft_s`, what it was held before it was admitted."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    """Mean seconds per output token after the first; None when it cannot be measured."""
    predicted_ttft_s: float | None = None
    predicted_tpot_s: float | None = None
    retried_input_tokens: int = 0
    retried_output_tokens: int = 0
    prefill_gpu_s: float | None = None
    """GPU-seconds that computing the prompt is estimated to have taken (`tokenfleet.engine.gpu_time`)."""
    decode_gpu_s: float | None = None
    """The same for its output."""
    retried_gpu_s: float = 0.0
    """The same for what abandoned attempts computed."""
    client_request_id: str | None = None
    time_scale: float = 1.0


EVENT_TYPES: dict[str, type[Event]] = {
    "submitted": Submitted,
    "placed": Placed,
    "queued": Queued,
    "admitted": Admitted,
    "refused": Refused,
    "routed": Routed,
    "first_token": FirstToken,
    "retried": Retried,
    "completed": Ended,
    "rejected": Ended,
    "timed_out": Ended,
    "cancelled": Ended,
    "failed": Ended,
    "lost": Ended,
}


def event_id(request_id: str, attempt: int, event: str) -> str:
    """Deterministic, so that publishing the same fact twice is recognised everywhere as one fact."""
    return f"{request_id}.{attempt}.{event}"


EventT = TypeVar("EventT", bound=Event)


def next_event(
    kind: type[EventT],
    name: str,
    after: Event,
    *,
    site: str,
    time_ns: int,
    pool: str | None = None,
    request_class: str | None = None,
    **fields: Any,
) -> EventT:
    """The fact `name` that follows another of the same request and attempt; `fields` are the kind's own."""
    return kind(
        event_id=event_id(after.request_id, after.attempt, name),
        request_id=after.request_id,
        attempt=after.attempt,
        tenant=after.tenant,
        pool=pool or after.pool,
        site=site,
        time_ns=time_ns,
        request_class=request_class or after.request_class,
        **fields,
    )


def terminal_event_id(request_id: str) -> str:
    """One per request whatever its outcome: a second outcome of the same request is a duplicate."""
    return f"{request_id}.end"


def lost_event_id(request_id: str) -> str:
    """Of the fact that nobody said how a request ended; whoever says so later is right."""
    return f"{request_id}.lost"
