"""Requests that were submitted and never ended, and what is said of their end.

Times are Unix ns, `S` the submission, `scale` engine seconds per second:

- deadline     `S + timeout_s / scale` with the last class timeout that SLOMax gave it (queued, admitted), else the
               deadline it was submitted with, else `S`; at most `S + 6 days`: later its events are gone.
- decide       `max(deadline, S) + bound`: without an outcome by then, it is lost.
- lost         of the facts that were recorded (each once, whatever their order): pool, site and class as the last
               decider said; objective and queue wait as admitted; instance as routed last, or as its first token says;
               `predicted TTFT = routed's prediction + queue wait`, else admitted's; TTFT as seen; retried tokens
               as each `retried` says. `e2e_s = (closed - S) * scale` is the time until it was closed, not until
               anybody stopped waiting. Output is not known: 0.
- reused       what TokenPilot expected to find cached, if a first token was seen from that instance; else 0. Then
               `computed = input - reused` is an estimate, booked as waste; without a first token nobody knows whether
               any engine had it, and nothing is (see `accounting`).
- degraded     a first token came from an instance that no decider had chosen for that attempt.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tokenfleet.contracts.requests import (
    SCHEMA,
    Admitted,
    Ended,
    Event,
    EventT,
    FirstToken,
    Objective,
    Placed,
    Queued,
    Refused,
    Retried,
    Routed,
    lost_event_id,
)

NO_OUTCOME = "no_outcome"
"""Nobody said how it ended."""
OUTCOME_REFUSED = "outcome_refused"
"""Somebody did, in an event that cannot be booked; it is a dead letter."""
STATUS = 500
LONGEST_NS = 6 * 86_400 * 10**9


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of what was asked, what its end needs."""

    model: str
    input_tokens: int
    stream: bool = False
    deadline_ns: int = 0
    client_request_id: str | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a `submitted` event of any version, what its end needs."""

    request_id: str
    tenant: str
    site: str
    time_ns: int
    request: Asked
    attempt: int = 1
    pool: str = ""


def decide_ns(asked: Submission, facts: Iterable[Event], time_scale: float, bound_ns: int) -> int:
    """When a request without an outcome is lost."""
    deadline_ns = asked.request.deadline_ns
    for fact in _in_order(facts):
        if isinstance(fact, Queued | Admitted) and fact.timeout_s is not None:
            deadline_ns = asked.time_ns + round(fact.timeout_s / time_scale * 1e9)
    latest_ns = asked.time_ns + LONGEST_NS
    return min(max(deadline_ns, asked.time_ns), latest_ns) + bound_ns


def lost(
    asked: Submission,
    facts: Iterable[Event],
    *,
    closed_ns: int,
    time_scale: float,
    reason: str = NO_OUTCOME,
) -> Ended:
    """The end of a request of which nobody said how it ended.

    Args:
        asked: its submission.
        facts: its other events, in the order they were stored; any may be missing, or there twice.
        closed_ns: now.
        time_scale: engine seconds per second.
        reason: why there is no other end.
    """
    known = _in_order(facts)
    decided = [fact for fact in known if isinstance(fact, Placed | Queued | Admitted | Refused | Routed)]
    admitted = _last(known, Admitted)
    routed = _last(known, Routed)
    first = _last(known, FirstToken)
    retried = [fact for fact in known if isinstance(fact, Retried)]
    queue_wait_s = admitted.queue_wait_s if admitted else None
    input_tokens = routed.input_tokens if routed else asked.request.input_tokens
    chosen = first is not None and _chosen(first, known)
    pool, site = (decided[-1].pool, decided[-1].site) if decided else (asked.pool, asked.site)
    time_ns = max(closed_ns, asked.time_ns)
    return Ended(
        event_id=lost_event_id(asked.request_id),
        request_id=asked.request_id,
        attempt=max((asked.attempt, *(fact.attempt for fact in known))),
        tenant=asked.tenant,
        pool=pool or asked.request.model,
        site=site,
        time_ns=time_ns,
        request_class=next((each.request_class for each in reversed(decided) if each.request_class), None),
        schema=SCHEMA,
        outcome="lost",
        reason=reason,
        status=STATUS,
        model=asked.request.model,
        stream=asked.request.stream,
        submitted_ns=asked.time_ns,
        e2e_s=(time_ns - asked.time_ns) / 1e9 * time_scale,
        admitted=admitted is not None,
        degraded=first is not None and not chosen,
        instance=(first.instance or None) if first else routed.instance if routed else None,
        objective=_objective(known),
        input_tokens=input_tokens,
        reused_tokens=min(routed.reused_tokens, input_tokens) if routed and chosen else 0,
        tokens_exact=False,
        queue_wait_s=queue_wait_s,
        ttft_s=first.ttft_s if first else None,
        predicted_ttft_s=_predicted_ttft_s(admitted, routed),
        predicted_tpot_s=routed.predicted_tpot_s if routed else None,
        retried_input_tokens=sum(fact.input_tokens for fact in retried),
        retried_output_tokens=sum(fact.output_tokens for fact in retried),
        client_request_id=asked.request.client_request_id,
        time_scale=time_scale,
    )


def _in_order(facts: Iterable[Event]) -> list[Event]:
    """Each fact once, attempt by attempt: of two that say the same the first counts, as it did for its ingress."""
    once: dict[str, Event] = {}
    for fact in facts:
        once.setdefault(fact.event_id, fact)
    return sorted(once.values(), key=lambda fact: (fact.attempt, _STEPS.get(type(fact), 0)))


_STEPS: dict[type[Event], int] = {
    kind: step for step, kind in enumerate((Placed, Queued, Admitted, Refused, Routed, FirstToken, Retried))
}
"""An attempt's course, so that the order of storing does not matter."""


def _last(facts: Sequence[Event], kind: type[EventT]) -> EventT | None:
    return next((fact for fact in reversed(facts) if isinstance(fact, kind)), None)


def _chosen(first: FirstToken, facts: Sequence[Event]) -> bool:
    return any(
        isinstance(fact, Routed) and (fact.attempt, fact.instance) == (first.attempt, first.instance)
        for fact in facts
    )


def _objective(facts: Sequence[Event]) -> Objective | None:
    given = [fact.objective for fact in facts if isinstance(fact, Admitted | Refused)]
    return next((objective for objective in reversed(given) if objective is not None), None)


def _predicted_ttft_s(admitted: Admitted | None, routed: Routed | None) -> float | None:
    if routed is not None and routed.predicted_ttft_s is not None:
        # TokenPilot counts from its decision, the ledger from the request's arrival.
        return routed.predicted_ttft_s + (admitted.queue_wait_s if admitted else 0.0)
    return admitted.predicted_ttft_s if admitted else None
