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
    """Of one FleetMind replica, in seconds of prefill per second and instance.

    Args:
        time_scale: engine seconds per wall second.
    """

    time_scale: float = 1.0
    _work_s: dict[tuple[str, str], tuple[float, float]] = field(
        default_factory=dict[tuple[str, str], tuple[float, float]]
    )
    """By site and pool: fading work of each instance, and when that was."""

    def beyond(self, pools: Sequence[Pool], now_s: float) -> list[float]:
        """By how much each of some pools is more sought after than the least of them."""
        wanted = [self._faded_s(pool, now_s) / (REMEMBERED_S * self.time_scale) for pool in pools]
        least = min(wanted, default=0.0)
        return [one - least for one in wanted]

    def seen(self, pools: Sequence[Pool], work_s: float, now_s: float) -> None:
        """A request came that any of these may serve."""
        each_s = work_s / max(1, sum(pool.capacity.ready for pool in pools))
        for pool in pools:
            self._work_s[pool.site, pool.name] = self._faded_s(pool, now_s) + each_s, now_s

    def _faded_s(self, pool: Pool, now_s: float) -> float:
        work_s, at_s = self._work_s.get((pool.site, pool.name), (0.0, now_s))
        return work_s * exp(-max(0.0, now_s - at_s) / REMEMBERED_S)
