"""How sought after each pool is by what enters here, so that whoever may go elsewhere leaves room for those who may not. Pure.

Every request is counted at each pool that may serve it, with an even share of its prefill. Requests that may go anywhere
raise all pools alike; those that are bound to a site or a version raise only theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from fleetmind.policy.sites import Pool

REMEMBERED_S = 30.0
"""Time constant, in wall seconds."""


@dataclass(slots=True)
class Demand:
    """Of one FleetMind replica.

    Args:
        time_scale: engine seconds per wall second.
    """

    time_scale: float = 1.0
    _work_s: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    """By site and pool, fading: prefill of one instance, as it was then."""
    _then_s: float = 0.0

    def beyond(self, pools: Sequence[Pool], now_s: float) -> list[float]:
        """By how much each of some pools is more sought after than the least of them, in seconds of prefill per second
        and instance."""
        work_s = [self._work_s.get((pool.site, pool.name), 0.0) for pool in pools]
        least_s = min(work_s, default=0.0)
        rate = self._left(now_s) / (REMEMBERED_S * self.time_scale)
        return [rate * (one - least_s) for one in work_s]

    def seen(self, pools: Sequence[Pool], work_s: float, now_s: float) -> None:
        """A request came that any of these may serve."""
        left = self._left(now_s)
        self._work_s = {key: left * one for key, one in self._work_s.items()}
        self._then_s = max(now_s, self._then_s)
        each_s = work_s / max(1, sum(pool.capacity.ready for pool in pools))
        for pool in pools:
            key = pool.site, pool.name
            self._work_s[key] = self._work_s.get(key, 0.0) + each_s

    def _left(self, now_s: float) -> float:
        """Of what was there then."""
        return exp(-max(0.0, now_s - self._then_s) / REMEMBERED_S)
