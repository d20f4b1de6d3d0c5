"""Which class goes next: guaranteed floors first, ceilings while others wait, else whoever has least time. Pure."""

import math
from collections.abc import Mapping

from tokenfleet.contracts.policy import ClassShare

MEMORY_S = 30.0
"""Shares are of the work started within about this time: long enough for several long prompts."""


IDLE_WORK_S = 1e-3
"""With less than this, nothing was started lately."""


class Work:
    """Engine seconds of prefill started for each class or tenant, forgotten exponentially.

    Args:
        memory_s: within about this time.
    """

    def __init__(self, memory_s: float = MEMORY_S) -> None:
        self._memory_s = memory_s
        self._work_s: dict[str, float] = {}
        self._time_s = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._work_s

    def started(self, name: str, work_s: float, now_s: float) -> None:
        self._decay(now_s)
        self._work_s[name] = self._work_s.get(name, 0.0) + work_s

    def share(self, name: str, now_s: float) -> float:
        """Of all work started lately."""
        self._decay(now_s)
        total_s = sum(self._work_s.values())
        return self._work_s.get(name, 0.0) / total_s if total_s > 0 else 0.0

    def per_s(self, name: str, now_s: float) -> float:
        """Engine seconds of its prefill started per second, lately."""
        self._decay(now_s)
        return self._work_s.get(name, 0.0) / self._memory_s

    def per_s_besides(self, name: str, now_s: float) -> float:
        """The same of all others."""
        self._decay(now_s)
        return sum(work_s for other, work_s in self._work_s.items() if other != name) / self._memory_s

    def total_per_s(self, now_s: float) -> float:
        """The same of all together."""
        self._decay(now_s)
        return sum(self._work_s.values()) / self._memory_s

    def forget_idle(self, now_s: float) -> None:
        """Drop those for which nothing was started lately."""
        self._decay(now_s)
        self._work_s = {name: work_s for name, work_s in self._work_s.items() if work_s > IDLE_WORK_S}

    def _decay(self, now_s: float) -> None:
        if now_s <= self._time_s:
            return  # Asked again at the same moment, as one look through the queues does many times.
        kept = math.exp(-(now_s - self._time_s) / self._memory_s)
        self._time_s = now_s
        for name in self._work_s:
            self._work_s[name] *= kept


def order(
    waiting: Mapping[str, float], work: Work, shares: Mapping[str, ClassShare], now_s: float
) -> list[str]:
    """The classes that have requests waiting, the one to be served first in front.

    Args:
        waiting: by class, the latest time at which the one of its requests that is next must begin.
        work: what was started lately.
        shares: floors and ceilings; a class without has neither.
        now_s: engine seconds.
    """

    def rank(request_class: str) -> tuple[int, float]:
        share = shares.get(request_class, ClassShare())
        has = work.share(request_class, now_s)
        if has < share.floor:
            return 0, waiting[request_class]
        if has >= share.ceiling and len(waiting) > 1:
            return 2, waiting[request_class]
        return 1, waiting[request_class]

    return sorted(waiting, key=rank)
