"""What /health says of a pool's queues and margins; `tokenfleet queue` shows it."""

from collections.abc import Mapping

from slomax.policy.pool import PoolAdmission
from tokenfleet.contracts.policy import Policy


def queues_of(admission: PoolAdmission, instances: int, now_s: float) -> dict[str, dict[str, object]]:
    """By class that has requests waiting."""
    return {
        name: {
            "requests": len(queue),
            "input_tokens": queue.input_tokens,
            "oldest_wait_s": max(now_s - entry.arrived_s for entry in queue),
            "expected_start_s": admission.expected_start_s(name, instances),
            "tenants": queue.waiting_by_tenant(),
        }
        for name, queue in admission.queues.items()
        if len(queue)
    }


def control_of(admission: PoolAdmission, policy: Policy) -> Mapping[str, float]:
    """The margins and floors in force."""
    return admission.knobs(policy)
