"""What an answer means for the line that was asked: its result, or another try later."""

from dataclasses import dataclass

MAX_FAILURES = 3
"""Tries that may fail with a server's error before that is the line's result."""
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 60.0

_CONTENDED = frozenset({408, 429, 503})
"""Nothing is wrong with the request: the fleet does not take it now."""


@dataclass(frozen=True, slots=True)
class Final:
    """The answer is the line's result."""

    succeeded: bool


@dataclass(frozen=True, slots=True)
class Again:
    """The line goes back and is tried again."""

    delay_s: float
    refused: bool
    """By a fleet that is too busy, which does not count as a failed try."""


Verdict = Final | Again


def judge(
    status: int, retry_after_s: float | None, *, refusals: int, failures: int, jitter: float
) -> Verdict:
    """What becomes of a line after an answer.

    Args:
        status: of the answer.
        retry_after_s: what the answer asks to wait, if it does.
        refusals: earlier tries that were refused.
        failures: earlier tries that failed.
        jitter: uniform in [0, 1), so that lines put back together do not come back together.
    """
    if status in _CONTENDED:
        return Again(_delay_s(refusals, retry_after_s, jitter), refused=True)
    if status >= 499 and failures + 1 < MAX_FAILURES:
        return Again(_delay_s(failures, retry_after_s, jitter), refused=False)
    return Final(succeeded=200 <= status < 300)


def _delay_s(earlier: int, retry_after_s: float | None, jitter: float) -> float:
    grown_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(earlier, 16))
    return max(grown_s, min(retry_after_s or 0.0, LONGEST_DELAY_S)) * (0.5 + jitter)
