"""Which of the work without haste goes first, so that all of it is done when it is due. Pure.

As long as there is time enough for everything, tenants take turns. Once the work that is due by some moment would
take most of the time until then, that work goes before what is due later, whosoever it is: fair turns would spend
the time on lines that have hours left. (Earliest deadline first meets every deadline that can be met: Liu and
Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", JACM 1973.)
"""

import math

from slomax.policy.fair_queue import FairQueue

REVIEW_S = 1.0
TIGHT_SHARE, SPARE_S = 0.4, 60.0
"""Of the time that is left until so long before a deadline: work that takes longer than this goes first. Interactive
load may rise meanwhile, and what is measured of the rate is that of the last half minute. At 0.6 and nothing to
spare, one of two seeds of the lab's `mixed` had 80 of 1,050 lines left at their deadline."""
SAME_DEADLINE_S = 60.0
"""Work due so soon after goes along with it: what a longer answer is granted differs by no more."""
LEAST_WORK_PER_S = 0.05
"""Taken where nothing was started lately."""


class DueFirst:
    """For one queue."""

    def __init__(self) -> None:
        self._next_review_s = -math.inf
        self._before_s = -math.inf

    def before_s(self, queue: FairQueue, work_per_s: float, now_s: float) -> float:
        """Who must start by this moment goes first; minus infinity while there is time for all.

        Args:
            queue: those that wait.
            work_per_s: seconds of prefill that were started for them lately, per second.
            now_s: engine seconds.
        """
        if now_s < self._next_review_s:
            return self._before_s
        self._next_review_s = now_s + REVIEW_S
        self._before_s = -math.inf
        work_s, rate = 0.0, max(work_per_s, LEAST_WORK_PER_S)
        for latest_start_s, own_s in sorted((one.latest_start_s, one.own_prefill_s) for one in queue):
            work_s += own_s
            if work_s > TIGHT_SHARE * rate * (latest_start_s - SPARE_S - now_s):
                self._before_s = latest_start_s + SAME_DEADLINE_S
                break
        return self._before_s
