"""Which class a request belongs to, and what that class promises it. Pure."""

from tokenfleet.contracts.policy import ClassObjective, Policy
from tokenfleet.contracts.requests import Objective, RequestSpec

BATCH_TIERS = frozenset({"flex", "batch"})


def classify(request: RequestSpec, policy: Policy) -> tuple[str, str]:
    """`(class, why)`: batch when the client asked for it, long_context above a length, else interactive."""
    if request.task == "batch":
        return "batch", "task"
    if request.service_tier in BATCH_TIERS:
        return "batch", "service_tier"
    if request.input_tokens > policy.long_context_tokens:
        return "long_context", "input_tokens"
    return "interactive", "default"


def objective_for(request_class: str, request: RequestSpec, policy: Policy) -> Objective:
    """The promise to one request; empty when its class has none."""
    promised = policy.objectives.get(request_class, ClassObjective())
    ttft_s = promised.ttft_s
    if ttft_s is not None:
        # Nobody can read 100,000 tokens as fast as 1,000: above a length TTFT grows in proportion.
        ttft_s *= max(1.0, request.input_tokens / promised.ttft_input_tokens)
    return Objective(ttft_s=ttft_s, tpot_s=promised.tpot_s, e2e_s=promised.e2e_s)
