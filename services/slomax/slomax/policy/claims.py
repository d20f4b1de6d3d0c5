"""Instances kept free for a long prompt that found no place where it would do little harm. Pure.

While nothing new is computed at an instance, those that decode there run at full speed and gain seconds on their
objective, more than two per second on the reference profile (a token in 30 ms, 100 ms promised): soon a long prompt
pushes nobody over. Without this the longest
prompts are the ones refused, since shorter ones always find a place first.
"""

from collections.abc import Sequence

import numpy as np

from slomax.policy.admission import is_late
from slomax.policy.entry import Entry
from slomax.policy.prospects import Prospects

CLAIM_FROM_S = 8.0
"""Prompts that take at least this long: more than any answer's slack can absorb at once."""
CLAIM_AT_SHARE = 0.6
"""Of its slack, after which a prompt claims an instance: earlier it may find one by itself."""
CLAIMED_SHARE = 0.125
"""Of a pool's instances, how many may be claimed at a time."""


class Claims:
    """Who has claimed what."""

    def __init__(self) -> None:
        self._by_instance: dict[str, str] = {}

    def free_for(self, entry: Entry, names: Sequence[str]) -> np.ndarray:
        """By instance, whether nobody else has claimed it."""
        claims = self._by_instance
        return np.array([claims.get(name, entry.request_id) == entry.request_id for name in names])

    def others(self, entry: Entry) -> tuple[str, ...]:
        """Instances that others have claimed."""
        return tuple(name for name, who in self._by_instance.items() if who != entry.request_id)

    def consider(self, entry: Entry, ahead: Prospects, instances: int, now_s: float) -> None:
        """Let a prompt that has to wait claim the instance where it would do least harm, if it is its turn.

        Work without haste has its turn when it is late, whatever its length.
        """
        waited_s = now_s - entry.arrived_s
        if entry.patient:
            its_turn = is_late(entry, now_s)
        else:
            its_turn = entry.own_prefill_s >= CLAIM_FROM_S and waited_s >= CLAIM_AT_SHARE * entry.slack_s
        if not its_turn:
            return
        if entry.request_id in self._by_instance.values():
            return
        if len(self._by_instance) >= max(1, int(CLAIMED_SHARE * instances)) or instances < 2:
            return
        names = [view.record.instance for view in ahead.instances]
        free = self.free_for(entry, names) & np.isfinite(ahead.misses)
        if free.any():
            best = int(np.argmin(np.where(free, ahead.misses, np.inf)))
            self._by_instance[names[best]] = entry.request_id

    def release(self, request_id: str) -> None:
        """It waits no longer."""
        for name, who in list(self._by_instance.items()):
            if who == request_id:
                del self._by_instance[name]
