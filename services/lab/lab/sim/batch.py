"""What batch lines got of a pool.

The work of a request, in engine seconds at its instance's profile, is what it alone makes iterations longer by:

    computed prompt tokens:  n (tp + ta (x + n/2))        n computed after x reused
    output after the first:  m td + tc (m i + m (m+1)/2)  m tokens decoded after i of input

The fixed cost of an iteration belongs to none of those that share it, so a pool at saturation does less than one
engine second of work per instance and second; how much less is measured, not assumed. A prompt's work is booked when
its first token comes, that of decoding evenly from there to the end.

The window goes from the first line's arrival to the moment when `MOST_LINES` of all lines are over: later the few that
are left cannot fill a pool. A line is over when it is done, and one that was refused or given up when it is due: who
turns lines away has not been quick. Within the window,

    remaining capacity  =  saturated work per second  -  work per second of all other requests
    batch's share of it =  work per second of batch lines / remaining capacity

The saturated rate comes from a run of the same lines with nothing beside them (the scenario's `alone`), of the policy
that does most there.
"""

from collections.abc import Sequence
from typing import Any

from lab.sim.api import Outcome
from lab.sim.workload import BATCH_TASK
from tokenfleet.contracts.fleet import EngineProfile

MOST_LINES = 0.9
NS_PER_S = 1e9


def batch_figures(outcomes: Sequence[Outcome], profiles: dict[str, EngineProfile]) -> dict[str, Any] | None:
    """What batch lines got; None where there are none.

    Args:
        outcomes: of every request.
        profiles: of the engines, by instance.
    """
    lines = [one for one in outcomes if one.arrival.spec.task == BATCH_TASK]
    if not lines:
        return None
    begin_s = min(one.arrival.time_s for one in lines)
    over_s = sorted(_over_s(one) for one in lines)
    end_s = over_s[max(0, round(MOST_LINES * len(lines)) - 1)]
    window_s = end_s - begin_s
    done = [one for one in lines if one.outcome == "completed"]
    last_s = max((one.ended_s for one in done), default=begin_s)
    due = [one for one in lines if one.arrival.spec.due_ns]
    met = sum(one.outcome == "completed" and one.ended_s * NS_PER_S <= one.arrival.spec.due_ns for one in due)
    work_s = sum(work_until_s(one, end_s, profiles) for one in lines)
    others_s = sum(
        work_until_s(one, end_s, profiles) - work_until_s(one, begin_s, profiles)
        for one in outcomes
        if one.arrival.spec.task != BATCH_TASK
    )
    return {
        "lines": len(lines),
        "deadlines": len(due),
        "deadlines_met": met / len(due) if due else None,
        "window_s": window_s,
        "output_tokens_per_s": _per(sum(one.output_tokens for one in done), last_s - begin_s),
        "work_per_s": _per(work_s, window_s),
        "others_work_per_s": _per(others_s, window_s),
    }


def work_until_s(outcome: Outcome, until_s: float, profiles: dict[str, EngineProfile]) -> float:
    """The work of a request that was done by a moment."""
    profile = profiles.get(outcome.instance or "")
    if profile is None or outcome.ttft_s is None:
        return 0.0
    first_s = outcome.arrival.time_s + outcome.ttft_s
    if first_s > until_s:
        return 0.0
    input_tokens = outcome.arrival.spec.input_tokens
    computed = input_tokens - outcome.reused_tokens
    prefill_s = computed * (
        profile.prefill_s_per_token
        + profile.attention_s_per_token_pair * (outcome.reused_tokens + computed / 2)
    )
    decoded = max(0, outcome.output_tokens - 1)
    decode_s = decoded * (
        profile.decode_s_per_request + profile.decode_s_per_context_token * (input_tokens + (decoded + 1) / 2)
    )
    decoding_s = outcome.ended_s - first_s
    share = min(1.0, (until_s - first_s) / decoding_s) if decoding_s > 0 else 1.0
    return prefill_s + share * decode_s


def _over_s(line: Outcome) -> float:
    if line.outcome == "completed":
        return line.ended_s
    return max(line.ended_s, line.arrival.spec.due_ns / NS_PER_S)


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
