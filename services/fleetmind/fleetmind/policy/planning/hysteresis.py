"""More replicas at once, fewer only after a while and a few at a time. Pure."""

from dataclasses import dataclass, field
from math import ceil

HOLD_S = 600.0
"""Replicas go only when nothing has asked for them for so long."""
MOST_DOWN = 0.1
"""Of a pool's replicas, how many one plan lets go; one at least."""

Key = tuple[str, str]
"""Site and pool."""


@dataclass(slots=True)
class Steadying:
    """What was wanted of every pool lately."""

    _wanted: dict[Key, list[tuple[float, int]]] = field(default_factory=dict[Key, list[tuple[float, int]]])
    """By pool: when, and how many, the greatest first: each is less than those before it."""

    def steadied(self, key: Key, running: int, wanted: int, hold_s: float, now_s: float) -> int:
        """How many it shall be now, no fewer than wanted.

        Args:
            key: the pool.
            running: replicas it has, or has begun.
            wanted: of it by itself now.
            hold_s: how long what was wanted before counts. Longer than a replica takes to warm up: what was foreseen
                before then has not come yet.
            now_s: monotonic, never earlier than before.
        """
        # One seen for the first time has what it has for a reason that is not known here.
        lately = self._wanted.setdefault(key, [(now_s, running)])
        while lately and lately[-1][1] <= wanted:
            lately.pop()
        lately.append((now_s, wanted))
        while now_s - lately[0][0] >= hold_s and len(lately) > 1:
            lately.pop(0)
        at_once = max(1, ceil(MOST_DOWN * running))
        return max(wanted, min(running, max(lately[0][1], running - at_once)))

    def keep(self, keys: set[Key]) -> None:
        """Forget pools that are not there any more."""
        self._wanted = {key: lately for key, lately in self._wanted.items() if key in keys}
