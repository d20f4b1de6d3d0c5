"""Which class a request belongs to, and what that class promises it. Pure."""

from slomax.policy.entry import Entry
from tokenfleet.contracts.policy import ClassObjective, Policy, Tenant
from tokenfleet.contracts.requests import Objective, RequestSpec
from tokenfleet.load import OutputLengths

INTERACTIVE, LONG_CONTEXT, BATCH = "interactive", "long_context", "batch"

BATCH_TIERS = frozenset({"flex", "batch"})

USUAL_TPOT_S = 0.05
"""Of an answer whose objective names none: half of the reference objective."""
PATIENT_TPOT_S = 0.12
"""The same beside as much work without haste as fits: a full chunk of prefill takes the reference engine 0.17 s."""


def classify(request: RequestSpec, policy: Policy) -> tuple[str, str]:
    """`(class, why)`: what the client declared, batch for what may wait, long_context above a length."""
    if request.task in policy.objectives and request.task != INTERACTIVE:
        return request.task, "task"
    if request.task == BATCH:
        return BATCH, "task"
    if request.service_tier in BATCH_TIERS:
        return BATCH, "service_tier"
    if request.input_tokens > policy.long_context_tokens:
        return LONG_CONTEXT, "input_tokens"
    return INTERACTIVE, "task" if request.task == INTERACTIVE else "default"


def objective_for(
    request_class: str, request: RequestSpec, policy: Policy, tenant: Tenant | None = None
) -> Objective:
    """The promise to one request; empty when its class has none.

    A client may ask for more time than its class promises; for less only where its tenant's tier is `priority`.
    """
    promised = class_objective(request_class, policy, tenant)
    ttft_s = promised.ttft_s
    if ttft_s is not None:
        # Nobody can read 100,000 tokens as fast as 1,000: above a length TTFT grows in proportion.
        ttft_s *= max(1.0, request.input_tokens / promised.ttft_input_tokens)
    asked = request.objective
    if asked is None:
        return Objective(ttft_s=ttft_s, tpot_s=promised.tpot_s, e2e_s=promised.e2e_s)
    may_tighten = tenant is not None and tenant.tier == "priority"
    return Objective(
        ttft_s=_bounded(asked.ttft_s, ttft_s, may_tighten=may_tighten),
        tpot_s=_bounded(asked.tpot_s, promised.tpot_s, may_tighten=may_tighten),
        e2e_s=_bounded(asked.e2e_s, promised.e2e_s, may_tighten=may_tighten),
    )


def class_objective(request_class: str, policy: Policy, tenant: Tenant | None) -> ClassObjective:
    """What a class promises a tenant."""
    if tenant is not None and request_class in tenant.objectives:
        return tenant.objectives[request_class]
    return policy.objectives.get(request_class, ClassObjective())


def entry_of(
    request_id: str,
    attempt: int,
    request: RequestSpec,
    tenant: Tenant,
    policy: Policy,
    arrived_s: float,
    now_s: float,
    left_s: float,
) -> Entry:
    """A request as the queues know it.

    Args:
        request_id: whose it is.
        attempt: from 1.
        request: what is known of it.
        tenant: who sent it.
        policy: in force.
        arrived_s: when its client sent it, in engine seconds.
        now_s: engine seconds.
        left_s: until nobody waits for its answer any more.
    """
    request_class, why = classify(request, policy)
    may_wait_s = left_s if request_class == BATCH else min(left_s, policy.queue.wait_s)
    if request.queue_ttl_s is not None:
        may_wait_s = min(may_wait_s, request.queue_ttl_s - (now_s - arrived_s))
    return Entry(
        request_id=request_id,
        attempt=attempt,
        tenant=tenant.tenant,
        weight=tenant.weight,
        request_class=request_class,
        class_reason=why,
        request=request,
        objective=objective_for(request_class, request, policy, tenant),
        when_late=tenant.when_late or policy.when_late,
        arrived_s=arrived_s,
        expires_s=now_s + may_wait_s,
        due_s=now_s + left_s if request.due_ns else None,
    )


def promised_s(entry: Entry, lengths: OutputLengths) -> float | None:
    """By when after its arrival the first token must come for all its promises to hold; None: none was made."""
    objective, limits = entry.objective, list[float]()
    answer_tokens = lengths.expected(lengths.row(entry.tokens, None))
    if objective.ttft_s is not None:
        limits.append(objective.ttft_s)
    if objective.e2e_s is not None:
        limits.append(objective.e2e_s - answer_tokens * (objective.tpot_s or USUAL_TPOT_S))
    if entry.due_s is not None:
        limits.append(entry.due_s - entry.arrived_s - answer_tokens * PATIENT_TPOT_S)
    return min(limits) if limits else None


def degrade(entry: Entry, policy: Policy, tenant: Tenant | None = None) -> None:
    """Move a request to the batch class, whose promise it gets instead of its own."""
    entry.degraded_from = entry.request_class
    entry.class_reason = f"degraded from {entry.request_class}"
    entry.request_class = BATCH
    entry.objective = objective_for(BATCH, entry.request, policy, tenant)
    entry.promised_s = entry.objective.e2e_s


def _bounded(asked_s: float | None, promised_s: float | None, *, may_tighten: bool) -> float | None:
    if asked_s is None:
        return promised_s
    if promised_s is None or may_tighten:
        return asked_s
    return max(asked_s, promised_s)
