"""Tenants that take far more than their share while others wait: what they may start, so that nobody else waits longer.

Fair turns decide who is next, not how long an engine is busy with whoever came before: beside a tenant that offers
twenty times its share, every instance is in the middle of one of its prompts whenever another tenant's arrives. So a
tenant that floods starts only while some instances stay idle for the others, the more of them the longer its prompt,
and only where the load that the others bring while answers last does nobody harm.
"""

from slomax.policy.entry import Entry
from slomax.policy.shares import Work

BEYOND_FAIR = 1 / 6
"""Where a pool is short, a tenant floods above its fair share and so much of what its share leaves: of ten equal ones,
above a quarter."""
SHORT_SHARE = 0.6
"""Of a pool's time, taken by prompts: below it there is room for whoever asks for more."""
IDLE_SHARE_PER_S = 0.6
LEAST_IDLE_SHARE, MOST_IDLE_SHARE = 0.125, 0.625
"""Of the instances, left idle by a flooding tenant's prompt: by its length, within bounds. Measured in the lab's `flood`
(docs/adr/0013-floods.md)."""
IDLE_PER_OTHERS = 1.5
"""But no more than so many times what the prompts of all others take of the pool's time: beside a tenant that sends
little, little is lost."""


class Tenants:
    """What was started for each tenant lately, besides work without haste, which makes way by itself."""

    def __init__(self) -> None:
        self._work = Work()
        self._weights: dict[str, float] = {}

    def started(self, entry: Entry, now_s: float) -> None:
        """One of its requests begins."""
        if entry.patient:
            return
        self._weights[entry.tenant] = entry.weight
        self._work.started(entry.tenant, entry.own_prefill_s, now_s)

    def floods(self, entry: Entry, instances: int, now_s: float) -> bool:
        """Whether its tenant had far more than its fair share of what a pool that is short started lately."""
        if entry.patient or entry.tenant not in self._weights:
            return False
        if self._work.total_per_s(now_s) < SHORT_SHARE * instances:
            return False
        fair = self._weights[entry.tenant] / sum(self._weights.values())
        return self._work.share(entry.tenant, now_s) > fair + BEYOND_FAIR * (1.0 - fair)

    def per_s_besides(self, tenant: str, now_s: float) -> float:
        """Engine seconds of prefill started per second for all others."""
        return self._work.per_s_besides(tenant, now_s)

    def forget_idle(self, now_s: float) -> None:
        """Drop the tenants for which nothing was started lately."""
        self._work.forget_idle(now_s)
        self._weights = {tenant: weight for tenant, weight in self._weights.items() if tenant in self._work}


def idle_share_kept(own_prefill_s: float, others_share: float) -> float:
    """Of the pool's instances, how many must stay idle beside a flooding tenant's prompt.

    Args:
        own_prefill_s: of the prompt.
        others_share: of the pool's time, taken by the prefill of all other tenants lately.
    """
    by_length = min(max(IDLE_SHARE_PER_S * own_prefill_s, LEAST_IDLE_SHARE), MOST_IDLE_SHARE)
    return min(by_length, IDLE_PER_OTHERS * others_share)
