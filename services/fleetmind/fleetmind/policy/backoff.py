"""How much of what could be diverted to a site is: less at once when it goes badly there, more again slowly. Pure.

And how full a site may be, learned from its own goodput. Times are monotonic wall seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

CUT = 0.5
"""Factor on the share for a rejection, a failure or a timeout."""
CUT_WHEN_SLOW = 0.7
LEAST_SHARE = 0.02
"""So that a site that has recovered is found out."""
RETURN_PER_S = 0.05
"""All of the share is back after 20 seconds without a bad sign."""
SAME_EVENT_S = 0.5
"""Bad signs within this time of a cut are of requests that were under way then: they are the same event."""
PATIENCE_S = 2.0
"""The share begins to return so long after the last bad sign."""
SLOW_FACTOR, SLOW_S = 2.0, 0.5
"""A first token is late when it took this many times what was predicted, and so much longer."""
SLOW_WEIGHT, SLOW_SHARE = 0.2, 0.5
"""Latency rises when, of the latest first tokens (each with this weight), more than this share was late."""


@dataclass(slots=True)
class Backoff:
    """One pool of another site."""

    _share: float = 1.0
    _since_s: float = 0.0
    """When `_share` was true."""
    _bad_s: float = float("-inf")
    _late: float = 0.0

    def share(self, now_s: float) -> float:
        """Of what could be diverted there, how much may be."""
        returning_s = max(0.0, now_s - max(self._since_s, self._bad_s + PATIENCE_S))
        return min(1.0, self._share + RETURN_PER_S * returning_s)

    def bad(self, now_s: float, factor: float = CUT) -> None:
        """A diverted request was refused, failed, or was not answered."""
        if now_s - self._bad_s < SAME_EVENT_S:
            return
        self._share = max(LEAST_SHARE, factor * self.share(now_s))
        self._since_s = self._bad_s = now_s

    def first_token(self, ttft_s: float, predicted_s: float, now_s: float) -> None:
        """A diverted request's first token came."""
        late = ttft_s > max(SLOW_FACTOR * predicted_s, predicted_s + SLOW_S)
        self._late += SLOW_WEIGHT * (float(late) - self._late)
        if self._late > SLOW_SHARE:
            self._late = 0.0
            self.bad(now_s, CUT_WHEN_SLOW)


GOOD, POOR = 0.97, 0.90
"""Of a window's requests, the share met at which the limit may rise, and below which it falls."""
FIRST_LIMIT_S, LEAST_LIMIT_S, GREATEST_LIMIT_S = 8.0, 0.5, 30.0
FALL, RISE = 0.8, 1.1
NEAR = 0.7
"""A window says something for a higher limit only where the load came so near to the present one."""
FULL_QUANTILE = 0.9
"""The load of a window is what its fullest instances had: this quantile over instances and readings."""
FEWEST = 20
"""Requests in a window that says anything."""


@dataclass(slots=True)
class LoadLimit:
    """How much prefill one instance of a pool may have before it, in engine seconds.

    Too high, and requests granted to others miss their objectives here; too low, and capacity is left unused. It falls when a
    window of outcomes was poor under a load that was near it or above, and rises when one was good there.
    """

    limit_s: float = FIRST_LIMIT_S
    _loads_s: list[float] = field(default_factory=list[float])

    def load(self, backlog_s: Iterable[float]) -> None:
        """A summary of the pool arrived, with what each instance had before it."""
        self._loads_s.extend(backlog_s)

    def window(self, met: int, ended: int) -> None:
        """A window of outcomes is over; `ended` counts all that were served, not those refused."""
        if ended < FEWEST or not self._loads_s:
            return
        ordered = sorted(self._loads_s)
        load_s = ordered[min(int(FULL_QUANTILE * len(ordered)), len(ordered) - 1)]
        self._loads_s = []
        share = met / ended
        if share < POOR and load_s >= NEAR * self.limit_s:
            # Not far below what was there: a lighter load has not been tried yet.
            self.limit_s = max(LEAST_LIMIT_S, min(self.limit_s, FALL * load_s))
        elif share >= GOOD and load_s >= NEAR * self.limit_s:
            self.limit_s = min(GREATEST_LIMIT_S, RISE * self.limit_s)
