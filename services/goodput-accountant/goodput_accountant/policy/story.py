"""One request's events and ledger rows as the lines of a story, in order."""

from collections.abc import Sequence

import msgspec

from goodput_accountant.policy.accounting import LedgerRow
from tokenfleet.contracts.requests import (
    Admitted,
    Ended,
    Event,
    FirstToken,
    Objective,
    Placed,
    Queued,
    Refused,
    Retried,
    Routed,
    Submitted,
)
from tokenfleet.recorded import Recorded


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One event."""

    after_s: float
    """Engine seconds since the submission: as measured where the event says so, else by when it was recorded."""
    wall_s: float
    """Seconds between the recording of the first event and of this one."""
    attempt: int
    who: str
    event: str
    says: str


def tell(events: Sequence[Recorded], time_scale: float) -> list[Line]:
    """The story of one request.

    Args:
        events: in the order in which they were recorded; any may be missing.
        time_scale: engine seconds per second, if its end does not say so itself.
    """
    if not events:
        return []
    ended = [each.event for each in events if isinstance(each.event, Ended)]
    scale = ended[-1].time_scale if ended else time_scale
    first_ns = events[0].time_ns
    lines: list[Line] = []
    for position, recorded in enumerate(events):
        wall_s = (recorded.time_ns - first_ns) / 1e9
        before = [each.event for each in events[:position] if each.event.attempt == recorded.event.attempt]
        lines.append(
            Line(
                after_s=_measured_s(recorded.event, wall_s * scale),
                wall_s=wall_s,
                attempt=recorded.event.attempt,
                who=_who(recorded.event, before),
                event=recorded.kind,
                says=_says(
                    recorded.event, before, (recorded.time_ns - _decided_ns(events[:position])) / 1e9 * scale
                ),
            )
        )
    return lines


def judged(row: LedgerRow) -> str:
    """What the ledger made of it, and why."""
    parts = [_verdict(row)]
    if row.waste_cause:
        gpu = f", {row.wasted_gpu_s:.2f} GPU-seconds" if row.wasted_gpu_s is not None else ""
        parts.append(
            f"wasted ({row.waste_cause}): {row.wasted_input_tokens:,} computed prompt tokens, "
            f"{row.wasted_output_tokens:,} output tokens{gpu}"
        )
    if row.retried_input_tokens or row.retried_output_tokens:
        parts.append(
            f"wasted (retried): {row.retried_input_tokens:,} prompt and {row.retried_output_tokens:,} output tokens of "
            "abandoned attempts"
        )
    return "; ".join(parts)


def _verdict(row: LedgerRow) -> str:
    promised = {"ttft": row.objective_ttft_s, "tpot": row.objective_tpot_s, "e2e": row.objective_e2e_s}
    if row.met:
        return f"good: it kept every term of its promise that can be judged; {row.good_output_tokens:,} output tokens count"
    if row.met is False:
        took = {"ttft": row.ttft_s, "tpot": row.tpot_s, "e2e": row.e2e_s}
        late = [_late(term, took.get(term), promised.get(term)) for term in row.missed]
        why = [] if row.outcome == "completed" else [row.outcome.replace("_", " ")]
        return f"a miss: {', '.join((*why, *late))}"
    if not any(limit is not None for limit in promised.values()):
        return "not judged: nothing was promised"
    if row.outcome == "cancelled":
        return "neutral: cancelled before anything promised was broken"
    return "not judged: nothing of what was promised could be measured"


def _late(term: str, took_s: float | None, limit_s: float | None) -> str:
    name = "end to end" if term == "e2e" else term.upper()
    if took_s is None:
        return f"no {name}, promised {_s(limit_s, 2)}"
    if limit_s is None or took_s <= limit_s:
        return f"{name} {took_s:.3f} s, too late for the TTFT and TPOT promised"
    return f"{name} {took_s:.3f} s, promised {_s(limit_s, 2)}"


def _measured_s(event: Event, recorded_s: float) -> float:
    if isinstance(event, FirstToken):
        return event.ttft_s
    return event.e2e_s if isinstance(event, Ended) else recorded_s


def _decided_ns(before: Sequence[Recorded]) -> int:
    """When the instance was chosen: what was predicted counts from there."""
    decisions = [each.time_ns for each in before if isinstance(each.event, Routed)]
    return decisions[-1] if decisions else before[0].time_ns if before else 0


def _who(event: Event, before: Sequence[Event]) -> str:
    match event:
        case Placed():
            return "fleetmind"
        case Queued() | Admitted():
            return "slomax"
        case Routed():
            return "tokenpilot"
        case Refused():
            if any(isinstance(each, Admitted) for each in before):
                return "tokenpilot"
            return "slomax" if any(isinstance(each, Placed) for each in before) else "fleetmind"
        case Ended():
            return "goodput-accountant" if event.outcome == "lost" else "ingress"
        case _:
            return "ingress"


def _says(event: Event, before: Sequence[Event], since_decision_s: float) -> str:
    match event:
        case Submitted():
            return _asked(event)
        case Placed():
            return f"at {event.site}, in pool {event.pool}: {event.reason}"
        case Queued():
            return (
                f"waits with {event.position:,} of its class before it: {event.reason}; expected to start in "
                f"{event.expected_start_s:.2f} s"
            )
        case Admitted():
            return _admitted(event)
        case Refused():
            retry = f"; try again in {event.retry_after_s:g} s" if event.retry_after_s is not None else ""
            return f"refused with {event.status} {event.reason}: {event.message}{retry}"
        case Routed():
            return _routed(event)
        case FirstToken():
            return _first_token(event, before, since_decision_s)
        case Retried():
            return (
                f"{event.instance or 'no instance'} failed: {event.reason}; {event.input_tokens:,} tokens in and "
                f"{event.output_tokens:,} out were for nothing, and another attempt follows"
            )
        case Ended():
            return _ended(event)
        case _:
            return ""


def _asked(event: Submitted) -> str:
    spec = event.request
    without = f", not at {', '.join(spec.excluded_instances)}" if spec.excluded_instances else ""
    tier = f", tier {spec.service_tier}" if spec.service_tier else ""
    return (
        f"tenant {event.tenant} asks {spec.model} for at most {spec.max_output_tokens:,} tokens on "
        f"{spec.input_tokens:,}{', streamed' if spec.stream else ''}{tier}{without}"
    )


def _admitted(event: Admitted) -> str:
    why = f" ({event.class_reason})" if event.class_reason else ""
    waited = f"; it waited {event.queue_wait_s:.2f} s" if event.queue_wait_s else ""
    return (
        f"class {event.request_class or 'none'}{why}; admitted: {event.reason}{waited}; promised "
        f"{_promise(event.objective)}"
    )


def _routed(event: Routed) -> str:
    of = f" of {event.considered:,}" if event.considered else ""
    out = sum(event.filtered.values())
    filtered = f" ({out:,} could not take it)" if out else ""
    return (
        f"to {event.instance}{of}{filtered}: {event.reason}; predicted TTFT {_s(event.predicted_ttft_s)} and TPOT "
        f"{_s(event.predicted_tpot_s, 4)}, {event.reused_tokens:,} of {event.input_tokens:,} tokens cached there"
    )


def _first_token(event: FirstToken, before: Sequence[Event], since_decision_s: float) -> str:
    decisions = [each for each in before if isinstance(each, Routed) and each.instance == event.instance]
    if not decisions or decisions[-1].predicted_ttft_s is None:
        return f"from {event.instance}, {event.ttft_s:.3f} s after the submission"
    return (
        f"from {event.instance}, {event.ttft_s:.3f} s after the submission; {since_decision_s:.3f} s after the decision, "
        f"predicted {_s(decisions[-1].predicted_ttft_s)}"
    )


def _ended(event: Ended) -> str:
    if event.outcome == "lost":
        return f"nobody said how it ended ({event.reason}): closed {event.e2e_s:.1f} s after the submission"
    where = f" at {event.instance}" if event.instance and event.outcome != "rejected" else ""
    alone = "; routed by ingress alone" if event.degraded else ""
    figures = (
        f"{event.output_tokens:,} tokens out of {event.input_tokens:,} in ({event.reused_tokens:,} cached)"
    )
    exact = "" if event.tokens_exact else ", counts estimated"
    tpot = ""
    if event.tpot_s is not None:
        predicted = (
            f", predicted {_s(event.predicted_tpot_s, 4)}" if event.predicted_tpot_s is not None else ""
        )
        tpot = f"; TPOT {_s(event.tpot_s, 4)}{predicted}"
    promised = f"; promised {_promise(event.objective)}" if event.objective else ""
    return f"{event.outcome.replace('_', ' ')} ({event.status} {event.reason}){where}: {figures}{exact}{tpot}{promised}{alone}"


def _promise(objective: Objective) -> str:
    terms = (("TTFT", objective.ttft_s), ("TPOT", objective.tpot_s), ("end to end", objective.e2e_s))
    return ", ".join(f"{name} {limit:g} s" for name, limit in terms if limit is not None) or "nothing"


def _s(value: float | None, digits: int = 3) -> str:
    return "unknown" if value is None else f"{value:,.{digits}f} s"
