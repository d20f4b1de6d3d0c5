"""Requests whose promise can no longer be kept: refused, or served late, as their tenant wants. Pure."""

from slomax.policy.admission import Keep, Refuse
from slomax.policy.classify import BATCH, degrade
from slomax.policy.entry import Entry
from slomax.policy.shares import Work
from tokenfleet.contracts.policy import Policy

MOST_SHARE, MEMORY_S = 0.05, 300.0
"""Of a pool's time: while the prompts that came too late within about this time take no more, they are served
nevertheless. A burst passes; where a pool is short for long, each of them would make others late (docs/adr/0011)."""
MOST_WAITING_S = 5.0
"""Of their prefill for each instance, that waits at a time: with more before it, a late request is refused."""
LATE = "late"


class Late:
    """What becomes of late requests, and how many there were lately."""

    def __init__(self) -> None:
        self._work = Work(MEMORY_S)
        self._waiting_s: dict[str, float] = {}

    def instead(
        self, entry: Entry, refusal: Refuse, policy: Policy, instances: int, now_s: float
    ) -> Refuse | Keep:
        """What its tenant wants for a refused request: the refusal, the class below, or a wait.

        Args:
            entry: the request; its class or its promise may be changed.
            refusal: only that of a promise that cannot be kept is ever taken back.
            policy: in force.
            instances: of the pool.
            now_s: engine seconds.
        """
        if refusal.reason != "predicted_to_miss_objective" or entry.when_late == "refuse":
            return refusal
        if entry.when_late == "degrade" and entry.request_class != BATCH:
            degrade(entry, policy)
            return Keep("degraded")
        if entry.when_late == "spare" and not self._spares(entry, instances, now_s):
            return refusal
        entry.promised_s, entry.given_up = None, True
        return Keep("best_effort")

    def waits(self, entry: Entry) -> None:
        """A request is queued."""
        if entry.when_late == "spare" and entry.given_up:
            self._waiting_s[entry.request_id] = entry.own_prefill_s

    def gone(self, request_id: str) -> None:
        """It waits no longer."""
        self._waiting_s.pop(request_id, None)

    def _spares(self, entry: Entry, instances: int, now_s: float) -> bool:
        """Whether the pool has room for one more late request: it counts as one, whatever the answer."""
        if entry.patient or entry.floods:
            return False
        self._work.started(LATE, entry.own_prefill_s, now_s)
        if self._work.per_s(LATE, now_s) > MOST_SHARE * instances:
            return False
        return sum(self._waiting_s.values()) + entry.own_prefill_s <= MOST_WAITING_S * instances
