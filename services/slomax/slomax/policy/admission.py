"""Start it, keep it waiting, or say no: what one request deserves now. Pure.

A wait is judged against the slack left after the own prefill: judging the whole predicted TTFT against the objective
would refuse nearly every long prompt, whose own prefill takes much of it. What a start would do to others is
judged by how many of them it is expected to push over their objective; a request may do more harm as its own time
runs out, but never more than `Margins.misses_allowed`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slomax.policy.entry import Entry
from slomax.policy.prospects import START_WITHIN_S, Prospects
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load.prices import MISS_PRICE_S

HARM_AT_ONCE = 0.1
"""The share of `misses_allowed` that a request may cause while it still has all of its slack."""
HARM_OF_FLOOD = 0.05
"""The same for a tenant that floods, however little slack it has left."""
HARM_OF_BATCH, BATCH_IS_LATE_AT = 0.02, 0.8
"""The same for work without haste, which waits for a better moment until so much of its slack is used up."""
HOPELESS_SHARE, HOPELESS_S = 0.95, 2.0
"""A wait beyond this share of the slack, or to within so many seconds of it, leaves no room for prediction error:
the objective counts as missed."""
LEAST_WAIT_S = 0.25
"""A wait this short is never a reason to refuse, however little slack the prompt leaves."""


@dataclass(frozen=True, slots=True)
class Margins:
    """What feedback moves, within bounds around the configured values."""

    wait_share_of_slack: float
    hold_share_of_slack: float
    misses_allowed: float
    queue_share: float = 1.0
    """Of the configured queue limits, how much is used."""


@dataclass(frozen=True, slots=True)
class Start:
    """Admit it now; it will most likely run on `instance`."""

    instance: str | None
    predicted_ttft_s: float | None
    """From its arrival on."""
    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Let it wait."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Say no, in a way a machine can read."""

    status: int
    reason: str
    message: str
    retry_after_s: float | None = None


Verdict = Start | Keep | Refuse

NO_READY_INSTANCE = Refuse(503, "no_ready_instance", "No instance of this model is ready.", retry_after_s=1.0)


def unservable(request: RequestSpec, instances: Sequence[InstanceView]) -> Refuse | None:
    """Why no instance of the pool could ever take the request, or None."""
    if not instances:
        return NO_READY_INSTANCE
    longest = max(view.record.profile.longest_prompt_tokens for view in instances)
    if request.input_tokens > longest:
        message = f"The prompt has {request.input_tokens} tokens; this model takes at most {longest} here."
        return Refuse(400, "context_length_exceeded", message)
    return None


def too_late_to_queue(entry: Entry, expected_wait_s: float, margins: Margins) -> Refuse | None:
    """Whether a request that arrives now would wait too long; better said at once than after the wait.

    Args:
        entry: the request.
        expected_wait_s: engine seconds until it could begin, with all that is served before it.
        margins: how much of its slack a wait may take.
    """
    if entry.promised_s is None:
        return None
    allowed_s = max(LEAST_WAIT_S, margins.wait_share_of_slack * entry.slack_s)
    if expected_wait_s <= allowed_s:
        return None
    message = (
        f"The fleet is busy: this request would wait {expected_wait_s:.1f} s, and more than {allowed_s:.1f} s "
        "would break its objective. Try again later."
    )
    retry_after_s = float(max(1, math.ceil(expected_wait_s - allowed_s)))
    return Refuse(429, "predicted_to_miss_objective", message, retry_after_s)


def judge(entry: Entry, ahead: Prospects, allowed: np.ndarray, margins: Margins, now_s: float) -> Verdict:
    """What to do with a request now.

    Args:
        entry: the request.
        ahead: what it would meet at each instance.
        allowed: by instance, whether limits other than time let it start there (long prompts, KV headroom).
        margins: how much harm and waiting is acceptable.
        now_s: engine seconds.
    """
    waited_s = now_s - entry.arrived_s
    slack_s = entry.slack_s
    if math.isinf(slack_s):
        consumed = np.zeros(len(ahead.wait_s))
    else:
        consumed = (waited_s + ahead.wait_s) / slack_s
    in_time = waited_s + ahead.wait_s <= _latest_wait_s(entry)
    soon = allowed & (ahead.wait_s <= START_WITHIN_S) & in_time
    startable = soon & (ahead.misses <= _harm_allowed(entry, consumed, margins))
    if startable.any():
        cost_s = np.where(startable, ahead.ttft_s + MISS_PRICE_S * ahead.misses, np.inf)
        best = int(np.argmin(cost_s))
        reason = "within_objective" if entry.promised_s is not None else "best_effort"
        return Start(ahead.instances[best].record.instance, waited_s + float(ahead.ttft_s[best]), reason)
    return hopeless(entry, float(ahead.wait_s.min()), now_s) or Keep(
        "would_harm_others" if soon.any() else "no_instance_free_soon"
    )


def hopeless(entry: Entry, least_wait_s: float, now_s: float) -> Refuse | None:
    """Whether its objective cannot be met any more, even where it could begin first."""
    waited_s = now_s - entry.arrived_s
    if waited_s + least_wait_s <= _latest_wait_s(entry):
        return None
    message = f"The fleet is busy: after {waited_s:.1f} s of waiting the objective cannot be met any more."
    retry_after_s = float(max(1, math.ceil(least_wait_s)))
    return Refuse(429, "predicted_to_miss_objective", message, retry_after_s)


def is_late(entry: Entry, now_s: float) -> bool:
    """Whether work without haste has to be started soon, more or less wherever it can be."""
    return now_s - entry.arrived_s > BATCH_IS_LATE_AT * entry.slack_s


def _latest_wait_s(entry: Entry) -> float:
    """How long it may wait at most and still be expected to keep its promise."""
    return max(HOPELESS_SHARE * entry.slack_s, entry.slack_s - HOPELESS_S)


def _harm_allowed(entry: Entry, consumed: np.ndarray, margins: Margins) -> np.ndarray:
    """Expected misses of others that are acceptable for it, by instance: more as its own slack is used up."""
    if entry.patient:
        at_once = HARM_OF_BATCH
        used = np.clip((consumed - BATCH_IS_LATE_AT) / (1.0 - BATCH_IS_LATE_AT), 0.0, 1.0)
    elif entry.floods:
        at_once, used = HARM_OF_FLOOD, np.zeros(len(consumed))
    else:
        at_once = HARM_AT_ONCE
        used = np.minimum(consumed / max(margins.hold_share_of_slack, 1e-9), 1.0)
    return margins.misses_allowed * (at_once + (1.0 - at_once) * used)
