"""A tenant's tokens per minute: reserved when a request is accepted, settled to what it used when it is over. Pure.

The limit is a token bucket that holds one minute's worth: whatever is accepted within any span of time uses at most
the rate times its length plus one bucket. Settling corrects the reservation in its own second, as if only what was used
had ever been taken; simply pouring the difference back later would let a tenant save up more than one bucket by
reserving much and using little.

The state is this process's own: a limit holds per ingress replica, so with N replicas a tenant whose requests are
spread over all of them has up to N times its rate. It starts full when a process starts.
"""

from dataclasses import dataclass

import numpy as np

from tokenfleet.contracts.requests import Ended

WINDOW_S = 60.0
HORIZON_S = 1024
"""A request that ends later than this after its acceptance gets nothing back. Requests have 600 s unless told otherwise."""
EXPECTED_OUTPUT_TOKENS = 1024
"""The most output that is reserved. Of the conversations in the Mooncake trace 98.6 % answer in fewer tokens (the mean
is 343), while clients often allow many times that: reserving all they allow would keep them from what they are entitled
to. What goes beyond is charged when the request ends."""


def expected_tokens(input_tokens: int, max_output_tokens: int) -> int:
    """What to reserve for a request."""
    return input_tokens + min(max_output_tokens, EXPECTED_OUTPUT_TOKENS)


def used_tokens(ended: Ended) -> int:
    """What a request's tenant is charged: the last attempt's tokens, unless nothing came of it.

    Attempts that an engine failed are the fleet's loss, and so is a request that failed without any output.
    """
    if ended.instance is None or ended.outcome == "rejected":
        return 0
    if ended.outcome == "failed" and not ended.output_tokens:
        return 0
    return ended.input_tokens + ended.output_tokens


@dataclass(frozen=True, slots=True)
class Reservation:
    """Tokens taken from a tenant's bucket."""

    tenant: str
    tokens: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Exceeded:
    """There are not as many tokens now."""

    retry_after_s: float | None
    """Engine seconds until there would be, if nothing else is taken; None: the bucket never holds as many."""


class TokenRates:
    """The buckets of all tenants that have a limit. Times are engine seconds."""

    def __init__(self) -> None:
        self._buckets: dict[str, TokenBucket] = {}

    def reserve(
        self,
        tenant: str,
        per_minute: int,
        input_tokens: int,
        max_output_tokens: int,
        now_s: float,
        *,
        leave_share: float = 0.0,
    ) -> Reservation | Exceeded:
        """Take a request's tokens, or nothing.

        Args:
            tenant: whose they are.
            per_minute: its limit now.
            input_tokens: of the request.
            max_output_tokens: what its client allows.
            now_s: engine seconds.
            leave_share: of the bucket, what must stay in it for others.
        """
        if input_tokens > per_minute:
            return Exceeded(None)
        tokens = min(expected_tokens(input_tokens, max_output_tokens), per_minute)
        bucket = self._buckets.get(tenant)
        if bucket is None:
            self._forget(now_s)
            bucket = self._buckets[tenant] = TokenBucket(now_s)
        # One that is larger than its share of the bucket waits for a full one, rather than for ever.
        leave = min(leave_share * per_minute, per_minute - tokens)
        wait_s = bucket.reserve(tokens, per_minute, now_s, leave=leave)
        return Exceeded(wait_s) if wait_s > 0.0 else Reservation(tenant, tokens, now_s)

    def settle(self, reservation: Reservation, used: int) -> None:
        """Correct a reservation, once, to what was used (in full: nothing)."""
        bucket = self._buckets.get(reservation.tenant)
        if bucket is not None:
            bucket.settle(reservation.at_s, reservation.tokens, used)

    def _forget(self, now_s: float) -> None:
        """Drop buckets in which nothing happened for so long that they are full."""
        self._buckets = {tenant: bucket for tenant, bucket in self._buckets.items() if not bucket.idle(now_s)}


class TokenBucket:
    """What one tenant has taken, by second, and what of it is not refilled yet.

    The deficit is the most, over all spans that end now, of what was taken in the span less what the rate gave back
    since. What is taken within a second counts from its end, which errs by at most a second's worth of the rate.
    """

    def __init__(self, now_s: float) -> None:
        self._taken = np.zeros(HORIZON_S)
        """A ring of seconds."""
        self._newest = int(now_s)
        self._older = 0.0
        """The deficit at the end of the last second before the ring's."""

    def reserve(self, tokens: int, per_minute: int, now_s: float, *, leave: float = 0.0) -> float:
        """Take tokens if the bucket then still holds `leave`; else the engine seconds until it would (0.0: taken)."""
        rate = per_minute / WINDOW_S
        self._advance(now_s, rate)
        wait_s = self._wait_s(per_minute - leave - tokens, rate, now_s)
        if wait_s <= 0.0:
            self._taken[self._newest % HORIZON_S] += tokens
        return max(0.0, wait_s)

    def settle(self, at_s: float, reserved: int, used: int) -> None:
        """Correct what was taken at a moment; what is older than the horizon can only be charged more."""
        second = int(at_s)
        if self._newest - second < HORIZON_S:
            self._taken[second % HORIZON_S] += used - reserved
        else:
            self._older += max(0, used - reserved)

    def level(self, per_minute: int, now_s: float) -> float:
        """Tokens that the bucket holds; below zero when more was used than was reserved."""
        rate = per_minute / WINDOW_S
        self._advance(now_s, rate)
        spans, ages_s = self._spans(now_s)
        return per_minute - max(0.0, float(np.max(spans - rate * np.maximum(ages_s, 0.0))))

    def idle(self, now_s: float) -> bool:
        """Whether nothing was taken within the horizon."""
        return now_s - self._newest >= HORIZON_S

    def _wait_s(self, room: float, rate: float, now_s: float) -> float:
        """Until no span's deficit exceeds `room`; negative when none does."""
        spans, ages_s = self._spans(now_s)
        over = spans > room
        if not over.any():
            return -1.0
        return float(np.max((spans[over] - room) / rate - ages_s[over]))

    def _spans(self, now_s: float) -> "tuple[np.ndarray, np.ndarray]":
        """What was taken in the latest 1, 2, ... seconds and in all, and how long ago the first second of each ended."""
        newest = self._newest % HORIZON_S
        latest_first = np.concatenate((self._taken[: newest + 1][::-1], self._taken[newest + 1 :][::-1]))
        spans = np.cumsum(np.append(latest_first, self._older))
        return spans, now_s - self._newest - 1.0 + np.arange(len(spans))

    def _advance(self, now_s: float, rate: float) -> None:
        passed = int(now_s) - self._newest
        for second in range(self._newest + 1, self._newest + 1 + min(passed, HORIZON_S)):
            leaving = second % HORIZON_S
            self._older = max(0.0, self._older - rate) + self._taken[leaving]
            self._taken[leaving] = 0.0
        if passed > HORIZON_S:
            self._older = max(0.0, self._older - rate * (passed - HORIZON_S))
        self._newest = max(self._newest, int(now_s))
