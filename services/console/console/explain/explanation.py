"""What the recorded events of one request say, put together. Pure.

Durations are engine seconds. Moments are counted from the submission, by the time at which the stream took
each event; the first token and the end were measured by ingress itself.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tokenfleet.contracts.requests import (
    Admitted,
    Ended,
    Event,
    FirstToken,
    Objective,
    Placed,
    Refused,
    RequestSpec,
    Retried,
    Routed,
    Submitted,
)
from tokenfleet.recorded import Recorded

EventT = TypeVar("EventT", bound=Event)

BLOCK_HASH_BYTES = 8


class Comparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prediction beside what happened; `ratio` is what happened over what was predicted."""

    predicted_s: float | None = None
    predicted_p90_s: float | None = None
    actual_s: float | None = None
    ratio: float | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One event in the request's life."""

    after_s: float
    attempt: int
    event: str
    detail: str


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One try at an instance."""

    attempt: int
    instance: str | None = None
    """Where ingress sent it; None when it was sent nowhere."""
    decision: Routed | None = None
    """The one that ingress followed; None when it was refused, or routed by ingress alone."""
    decided_after_s: float | None = None
    superseded: tuple[Routed, ...] = ()
    """Other instances that were decided for the same attempt, too late or by another replica."""
    ttft: Comparison = Comparison()
    """From the decision to the first token."""
    failure: Retried | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request: what it was, what was decided and why, what came of it."""

    request_id: str
    client_request_id: str | None = None
    tenant: str
    pool: str
    site: str
    request_class: str | None = msgspec.field(default=None, name="class")
    model: str | None = None
    stream: bool | None = None
    input_tokens: int | None = None
    prompt_blocks: int | None = None
    max_output_tokens: int | None = None
    objective: Objective | None = None
    time_scale: float = 1.0
    placements: tuple[Placed, ...] = ()
    """Where FleetMind sent it, with the sites it weighed; again for each attempt, and where a site did not answer."""
    attempts: tuple[Attempt, ...] = ()
    refused: Refused | None = None
    ended: Ended | None = None
    """None while the request is under way."""
    tpot: Comparison = Comparison()
    steps: tuple[Step, ...] = ()


def explain(events: Sequence[Recorded], time_scale: float = 1.0) -> Explanation:
    """Put the events of one request together.

    Args:
        events: at least one, in the order in which they were recorded; any of them may be missing.
        time_scale: engine seconds per second, if its end does not say so itself.
    """
    all_events = [recorded.event for recorded in events]
    ended = _last(all_events, Ended)
    scale = ended.time_scale if ended else time_scale
    first_ns = events[0].time_ns
    after_s = {
        id(recorded.event): _after_s(recorded.event, recorded.time_ns - first_ns, scale)
        for recorded in events
    }
    numbers = sorted({event.attempt for event in all_events})
    attempts = tuple(
        attempt
        for number in numbers
        if (attempt := _attempt(number, [e for e in all_events if e.attempt == number], after_s))
    )
    last, spec = all_events[-1], _spec(all_events)
    admitted = _last(all_events, Admitted)
    return Explanation(
        request_id=last.request_id,
        client_request_id=spec.client_request_id if spec else ended and ended.client_request_id,
        tenant=last.tenant,
        pool=(ended or last).pool,
        site=(ended or last).site,
        request_class=next((e.request_class for e in reversed(all_events) if e.request_class), None),
        model=spec.model if spec else ended and ended.model,
        stream=spec.stream if spec else ended and ended.stream,
        input_tokens=spec.input_tokens if spec else ended and ended.input_tokens,
        prompt_blocks=len(spec.blocks) // BLOCK_HASH_BYTES if spec else None,
        max_output_tokens=spec.max_output_tokens if spec else None,
        objective=admitted.objective if admitted else ended and ended.objective,
        time_scale=scale,
        placements=_placements(all_events),
        attempts=attempts,
        refused=_last(all_events, Refused),
        ended=ended,
        tpot=_tpot(attempts, ended),
        steps=tuple(_step(recorded, after_s[id(recorded.event)]) for recorded in events),
    )


def filters_hit(decision: Routed) -> dict[str, int]:
    """How many instances could not take the request, by reason, most first."""
    counts = dict(decision.filtered)
    if not counts:  # recorded before decisions counted them
        for candidate in decision.candidates:
            if candidate.filtered:
                counts[candidate.filtered] = counts.get(candidate.filtered, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _attempt(number: int, events: list[Event], after_s: dict[int, float]) -> Attempt | None:
    decisions = _distinct([event for event in events if isinstance(event, Routed)])
    failure, first_token, ended = _last(events, Retried), _last(events, FirstToken), _last(events, Ended)
    arrived = failure or first_token or ended
    sent_to = arrived.instance if arrived else None
    if arrived is ended and ended is not None and not decisions and not ended.degraded:
        sent_to = None  # the end still names the instance of the attempt before
    if not decisions and not sent_to:
        return None
    decision = next(
        (each for each in decisions if each.instance == sent_to),
        decisions[0] if decisions and sent_to is None else None,
    )
    decided_s = after_s[id(decision)] if decision else None
    actual_s = after_s[id(first_token)] if first_token else None
    return Attempt(
        attempt=number,
        instance=sent_to or (decision.instance if decision else None),
        decision=decision,
        decided_after_s=decided_s,
        superseded=tuple(each for each in decisions if each is not decision),
        ttft=_comparison(
            decision.predicted_ttft_s if decision else None,
            decision.predicted_ttft_p90_s if decision else None,
            None if actual_s is None or decided_s is None else max(0.0, actual_s - decided_s),
        ),
        failure=failure,
    )


def _tpot(attempts: Sequence[Attempt], ended: Ended | None) -> Comparison:
    decision = attempts[-1].decision if attempts else None
    if ended is None or decision is None:
        return Comparison(predicted_s=decision.predicted_tpot_s if decision else None)
    return _comparison(decision.predicted_tpot_s, decision.predicted_tpot_p90_s, ended.tpot_s)


def _comparison(predicted_s: float | None, p90_s: float | None, actual_s: float | None) -> Comparison:
    ratio = actual_s / predicted_s if actual_s is not None and predicted_s else None
    return Comparison(predicted_s=predicted_s, predicted_p90_s=p90_s, actual_s=actual_s, ratio=ratio)


def _after_s(event: Event, recorded_after_ns: int, time_scale: float) -> float:
    if isinstance(event, FirstToken):
        return event.ttft_s
    if isinstance(event, Ended):
        return event.e2e_s
    return recorded_after_ns / 1e9 * time_scale


def _distinct(decisions: Sequence[Routed]) -> list[Routed]:
    """Without the same answer given again to a request that was submitted again."""
    return list({decision.instance: decision for decision in reversed(decisions)}.values())[::-1]


def _placements(events: Sequence[Event]) -> tuple[Placed, ...]:
    """Without those that were said again."""
    placed = [event for event in events if isinstance(event, Placed)]
    return tuple({(event.attempt, event.site, event.pool): event for event in reversed(placed)}.values())[
        ::-1
    ]


def _spec(events: Sequence[Event]) -> RequestSpec | None:
    return next((event.request for event in events if isinstance(event, Submitted | Placed | Admitted)), None)


def _last(events: Sequence[Event], kind: type[EventT]) -> EventT | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


def _step(recorded: Recorded, after_s: float) -> Step:
    event = recorded.event
    return Step(after_s=after_s, attempt=event.attempt, event=recorded.kind, detail=_detail(event))


def _detail(event: Event) -> str:
    match event:
        case Submitted():
            out = event.request.excluded_instances
            return f"to site {event.site}" + (f", not to {', '.join(out)}" if out else "")
        case Placed():
            return f"{event.pool} at {event.site}: {event.reason}"
        case Admitted():
            return f"{event.request_class or 'no class'}: {event.reason}"
        case Refused():
            return f"{event.status} {event.reason}: {event.message}"
        case Routed():
            return f"to {event.instance}: {event.reason}"
        case FirstToken():
            return f"from {event.instance}"
        case Retried():
            return f"{event.instance or 'no instance'} failed: {event.reason}"
        case Ended():
            return f"{event.status} {event.reason}, {event.output_tokens} tokens out"
        case _:
            return ""
