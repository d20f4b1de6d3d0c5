"""One request's story in plain lines."""

from typing import Any

import pytest
from unit.accounting.rows import BASE_NS, PROMISE, ended

from goodput_accountant.policy.accounting import account
from goodput_accountant.policy.story import judged, tell
from tokenfleet.contracts.requests import (
    EVENT_TYPES,
    Event,
    Objective,
    RequestSpec,
    lost_event_id,
)
from tokenfleet.recorded import Recorded

TIME_SCALE = 10.0
SPEC = RequestSpec(
    model="llama-70b",
    entry_site="local",
    ingress="ingress-1",
    input_tokens=1_000,
    max_output_tokens=256,
    block_size_tokens=64,
    stream=True,
    service_tier="flex",
)


def recorded(kind: str, wall_s: float, *, attempt: int = 1, **fields: Any) -> Recorded:
    time_ns = BASE_NS + round(wall_s * 1e9)
    event: Event = EVENT_TYPES[kind](
        event_id=f"r1.{attempt}.{kind}",
        request_id="r1",
        attempt=attempt,
        tenant="acme",
        pool="llama-70b@1",
        site="local",
        time_ns=time_ns,
        request_class=None if kind == "submitted" else "interactive",
        **fields,
    )
    return Recorded(kind, event, time_ns)


def end(wall_s: float, **fields: Any) -> Recorded:
    event = ended("r1", time_scale=TIME_SCALE, e2e_s=wall_s * TIME_SCALE, **fields)
    return Recorded(event.outcome, event, BASE_NS + round(wall_s * 1e9))


SUBMITTED = recorded("submitted", 0.0, request=SPEC)
PLACED = recorded("placed", 0.001, request=SPEC, reason="only_site")
ADMITTED = recorded(
    "admitted",
    0.05,
    request=SPEC,
    objective=PROMISE,
    reason="fits",
    class_reason="short input",
    queue_wait_s=0.45,
)
ROUTED = recorded(
    "routed",
    0.06,
    instance="engine-2",
    generation=1,
    input_tokens=1_000,
    reused_tokens=640,
    predicted_ttft_s=0.3,
    predicted_tpot_s=0.02,
    reason="least_cost",
    considered=4,
    filtered={"circuit_open": 1},
)
FIRST_TOKEN = recorded("first_token", 0.1, instance="engine-2", ttft_s=1.0)


def refusal(wall_s: float) -> Recorded:
    return recorded(
        "refused", wall_s, status=429, reason="admission_slack", message="It is full.", retry_after_s=2.0
    )


def said(*events: Recorded) -> list[tuple[str, str]]:
    return [(line.who, line.says) for line in tell(events, TIME_SCALE)]


def test_a_good_request_says_who_did_what_when_and_what_was_predicted():
    queued = recorded("queued", 0.002, reason="pool_full", position=3, expected_start_s=0.4, valid_s=5.0)
    lines = tell([SUBMITTED, PLACED, queued, ADMITTED, ROUTED, FIRST_TOKEN, end(1.0)], TIME_SCALE)
    assert [(line.who, line.event) for line in lines] == [
        ("ingress", "submitted"),
        ("fleetmind", "placed"),
        ("slomax", "queued"),
        ("slomax", "admitted"),
        ("tokenpilot", "routed"),
        ("ingress", "first_token"),
        ("ingress", "completed"),
    ]
    assert [round(line.after_s, 3) for line in lines] == [0.0, 0.01, 0.02, 0.5, 0.6, 1.0, 10.0]
    assert [round(line.wall_s, 3) for line in lines] == [0.0, 0.001, 0.002, 0.05, 0.06, 0.1, 1.0]
    says = [line.says for line in lines]
    assert says[0] == "tenant acme asks llama-70b for at most 256 tokens on 1,000, streamed, tier flex"
    assert says[2] == "waits with 3 of its class before it: pool_full; expected to start in 0.40 s"
    assert says[3] == (
        "class interactive (short input); admitted: fits; it waited 0.45 s; promised TTFT 4 s, TPOT 0.1 s"
    )
    assert says[4] == (
        "to engine-2 of 4 (1 could not take it): least_cost; predicted TTFT 0.300 s and TPOT 0.0200 s, "
        "640 of 1,000 tokens cached there"
    )
    assert says[5] == (
        "from engine-2, 1.000 s after the submission; 0.400 s after the decision, predicted 0.300 s"
    )
    assert says[6].startswith(
        "completed (200 stop) at engine-1: 100 tokens out of 1,000 in (400 cached); TPOT 0.09"
    )


@pytest.mark.parametrize(
    ("before", "who"),
    [
        ([SUBMITTED], "fleetmind"),
        ([SUBMITTED, PLACED], "slomax"),
        ([SUBMITTED, PLACED, ADMITTED], "tokenpilot"),
    ],
)
def test_who_refused_follows_from_how_far_it_had_come(before: list[Recorded], who: str):
    assert said(*before, refusal(0.2))[-1] == (
        who,
        "refused with 429 admission_slack: It is full.; try again in 2 s",
    )


def test_a_retry_is_told_with_what_it_cost_and_the_second_try_beside_its_own_decision():
    retried = recorded(
        "retried", 0.1, instance="engine-2", reason="engine_error", input_tokens=1_000, output_tokens=3
    )
    again = recorded("submitted", 0.1, attempt=2, request=SPEC)
    lines = tell([SUBMITTED, ROUTED, retried, again, refusal(0.3)], TIME_SCALE)
    assert lines[2].says == (
        "engine-2 failed: engine_error; 1,000 tokens in and 3 out were for nothing, and another attempt follows"
    )
    assert lines[3].attempt == 2


def test_a_lost_request_was_closed_by_the_accountant():
    lost = end(
        60.0,
        event_id=lost_event_id("r1"),
        outcome="lost",
        reason="no_end",
        status=500,
        ttft_s=None,
        tpot_s=None,
        output_tokens=0,
    )
    who, says = said(SUBMITTED, PLACED, lost)[-1]
    assert who == "goodput-accountant"
    assert says == "nobody said how it ended (no_end): closed 600.0 s after the submission"


def test_a_request_under_way_has_the_story_so_far():
    assert len(tell([SUBMITTED, PLACED], TIME_SCALE)) == 2
    assert tell([], TIME_SCALE) == []


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "good: it kept every term of its promise that can be judged; 100 output tokens count"),
        (
            {"ttft_s": 5.0},
            "a miss: TTFT 5.000 s, promised 4.00 s; wasted (late): 600 computed prompt tokens, 100 output tokens",
        ),
        (
            {"outcome": "rejected", "output_tokens": 0, "ttft_s": None},
            "a miss: rejected, no TTFT, promised 4.00 s",
        ),
        ({"objective": None}, "not judged: nothing was promised"),
        (
            {"outcome": "cancelled", "output_tokens": 7},
            "neutral: cancelled before anything promised was broken; wasted (cancelled): "
            "600 computed prompt tokens, 7 output tokens",
        ),
        (
            {"stream": False, "ttft_s": None, "tpot_s": None, "objective": Objective(tpot_s=0.1)},
            "not judged: nothing of what was promised could be measured",
        ),
        (
            {"retried_input_tokens": 1_000, "retried_output_tokens": 3},
            "wasted (retried): 1,000 prompt and 3 output tokens of abandoned attempts",
        ),
    ],
)
def test_the_verdict_says_why(changes: dict[str, Any], verdict: str):
    assert verdict in judged(account(ended(**changes)))
