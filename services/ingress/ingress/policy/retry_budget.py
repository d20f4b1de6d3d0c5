"""How many retries there may be, so that an outage is not amplified by asking everything twice. Pure."""

from collections import deque

WINDOW_S = 60.0
FREE_RETRIES = 3
"""In any window, whatever the share: a quiet fleet with one broken engine must be able to retry."""
RETRY_AFTER_S = 5.0
"""What a client is told whose request failed for want of budget: long enough for an engine to be found dead."""


class RetryBudget:
    """Requests and retries of one ingress within the last minute."""

    def __init__(self) -> None:
        self._requests = _Recent()
        self._retries = _Recent()

    def request(self, now_s: float) -> None:
        """A request was accepted."""
        self._requests.add(now_s)

    def take(self, share: float, now_s: float) -> bool:
        """Whether one more retry is allowed now; it then counts.

        Args:
            share: of the window's requests, how many retries there may be.
            now_s: wall seconds.
        """
        allowed = max(FREE_RETRIES, share * self._requests.count(now_s))
        if self._retries.count(now_s) + 1 > allowed:
            return False
        self._retries.add(now_s)
        return True


class _Recent:
    """Counts what happened within the window, to the second."""

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()
        self._total = 0

    def add(self, now_s: float) -> None:
        second = int(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0])
        self._seconds[-1][1] += 1
        self._total += 1

    def count(self, now_s: float) -> int:
        while self._seconds and self._seconds[0][0] <= now_s - WINDOW_S:
            self._total -= self._seconds.popleft()[1]
        return self._total
