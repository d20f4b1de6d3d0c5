"""Ended events for the accounting tests: valid unless a test says otherwise."""

from typing import Any

from hypothesis import strategies as st

from tokenfleet.contracts.requests import Ended, Objective, terminal_event_id

SECOND_NS = 1_000_000_000
BASE_NS = 1_700_000_000 * SECOND_NS
PROMISE = Objective(ttft_s=4.0, tpot_s=0.1)


def ended(request_id: str = "r1", **changes: Any) -> Ended:
    """A streamed, completed request that kept its promise, with some fields changed."""
    fields: dict[str, Any] = {
        "event_id": terminal_event_id(request_id),
        "request_id": request_id,
        "attempt": 1,
        "tenant": "acme",
        "pool": "llama-70b@1",
        "site": "local",
        "time_ns": BASE_NS + 10 * SECOND_NS,
        "request_class": "interactive",
        "outcome": "completed",
        "reason": "stop",
        "status": 200,
        "model": "llama-70b",
        "stream": True,
        "submitted_ns": BASE_NS,
        "e2e_s": 10.0,
        "admitted": True,
        "instance": "engine-1",
        "objective": PROMISE,
        "input_tokens": 1000,
        "reused_tokens": 400,
        "output_tokens": 100,
        "ttft_s": 1.0,
        "tpot_s": 0.09,
        "client_request_id": f"run-{request_id}",
    }
    return Ended(**(fields | changes))


_seconds = st.floats(min_value=0, max_value=1e4)
_maybe_seconds = st.none() | _seconds
_tokens = st.integers(min_value=0, max_value=10**6)
_limit = st.none() | st.floats(min_value=0.001, max_value=1e4)


@st.composite
def any_ended(draw: st.DrawFn) -> Ended:
    """Whatever an ingress may publish, contradictory events included."""
    submitted_ns = BASE_NS + draw(st.integers(0, 10**12))
    objective = draw(
        st.none() | st.builds(Objective, ttft_s=_limit, tpot_s=_limit, e2e_s=_limit),
    )
    return ended(
        draw(st.uuids()).hex,
        outcome=draw(st.sampled_from(["completed", "rejected", "timed_out", "cancelled", "failed"])),
        request_class=draw(st.sampled_from(["interactive", "batch", None])),
        objective=objective,
        stream=draw(st.booleans()),
        admitted=draw(st.booleans()),
        degraded=draw(st.booleans()),
        instance=draw(st.sampled_from(["engine-1", None])),
        submitted_ns=submitted_ns,
        time_ns=submitted_ns + draw(st.integers(0, 10**12)),
        e2e_s=draw(_seconds),
        ttft_s=draw(_maybe_seconds),
        tpot_s=draw(_maybe_seconds),
        input_tokens=draw(_tokens),
        reused_tokens=draw(_tokens),
        output_tokens=draw(_tokens),
        retried_input_tokens=draw(_tokens),
        retried_output_tokens=draw(_tokens),
    )
