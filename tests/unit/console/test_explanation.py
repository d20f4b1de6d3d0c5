"""`tokenfleet explain`: the recorded events of a request, put together and shown."""

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from console.explain.explanation import explain, filters_hit
from console.explain.rendering import render
from tokenfleet.contracts.requests import (
    EVENT_TYPES,
    Admitted,
    Candidate,
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
    Weighed,
)
from tokenfleet.recorded import Recorded

SUBMITTED_NS = 1_764_547_200_000_000_000
TIME_SCALE = 10.0
SPEC = RequestSpec(
    model="llama-70b",
    entry_site="local",
    ingress="ingress-1",
    input_tokens=3_000,
    max_output_tokens=256,
    block_size_tokens=64,
    blocks=b"\x01" * 8 * 46,
    stream=True,
    client_request_id="mine",
)
BEST = Candidate(
    instance="engine-2",
    cost_s=0.31,
    predicted_ttft_s=0.3,
    predicted_tpot_s=0.0163,
    backlog_s=0.05,
    kv_wait_s=0.0,
    own_prefill_s=0.25,
    expected_misses=0.01,
    reused_tokens=2_944,
    offloaded_tokens=640,
    decoding=7,
    pending=1,
    kv_usage=0.42,
    telemetry_age_s=0.08,
    index="exact",
)
SECOND = Candidate(instance="engine-1", cost_s=0.9, predicted_ttft_s=0.6)
OUT = Candidate(instance="engine-3", filtered="circuit_open")


def recorded(kind: str, wall_s: float, *, attempt: int = 1, **fields: Any) -> Recorded:
    """One event as the stream took it, `wall_s` real seconds after the submission."""
    time_ns = SUBMITTED_NS + round(wall_s * 1e9)
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


def submitted(wall_s: float = 0.0, **fields: Any) -> Recorded:
    return recorded("submitted", wall_s, request=SPEC, **fields)


def routed(wall_s: float, instance: str = "engine-2", **fields: Any) -> Recorded:
    values: dict[str, Any] = {
        "instance": instance,
        "generation": 1,
        "input_tokens": 3_000,
        "reused_tokens": 2_944,
        "predicted_ttft_s": 0.3,
        "predicted_ttft_p90_s": 0.5,
        "predicted_tpot_s": 0.0163,
        "reason": "least_cost",
        "candidates": (BEST, SECOND, OUT),
        "considered": 40,
        "filtered": {"circuit_open": 1, "no_kv_room": 37},
    }
    return recorded("routed", wall_s, **values | fields)


def ended(outcome: str = "completed", wall_s: float = 0.5, **fields: Any) -> Recorded:
    values: dict[str, Any] = {
        "outcome": outcome,
        "reason": "stop",
        "status": 200,
        "model": "llama-70b",
        "stream": True,
        "submitted_ns": SUBMITTED_NS,
        "e2e_s": wall_s * TIME_SCALE,
        "instance": "engine-2",
        "input_tokens": 3_000,
        "reused_tokens": 2_944,
        "output_tokens": 200,
        "ttft_s": 0.46,
        "tpot_s": 0.02,
        "client_request_id": "mine",
        "time_scale": TIME_SCALE,
    }
    return recorded(outcome, wall_s, **values | fields)


GOOD = [
    submitted(),
    recorded("placed", 0.001, request=SPEC, reason="only_site"),
    recorded("admitted", 0.002, request=SPEC, objective=Objective(ttft_s=4.0, tpot_s=0.1), reason="fits"),
    routed(0.01),
    recorded("first_token", 0.046, instance="engine-2", ttft_s=0.46),
    ended(),
]
RETRIED = [
    submitted(),
    routed(0.01),
    recorded("retried", 0.05, instance="engine-2", reason="engine_connection_lost", input_tokens=3_000),
    submitted(0.05, attempt=2),
    routed(0.06, "engine-1", attempt=2),
    recorded("first_token", 0.09, attempt=2, instance="engine-1", ttft_s=0.9),
    ended(attempt=2, instance="engine-1", ttft_s=0.9),
]


def shown(events: list[Recorded]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(explain(events)), highlight=False)
    return console.export_text()


def row(text: str, start: str) -> list[str]:
    """The cells of the first line that begins so."""
    line = next(line for line in text.splitlines() if line.split()[: len(start.split())] == start.split())
    return line.split()


def test_a_prediction_is_compared_with_what_happened_since_the_decision_not_since_the_submission():
    explanation = explain(GOOD)
    (attempt,) = explanation.attempts
    assert attempt.decided_after_s == pytest.approx(0.1), "engine seconds: ten to a real one"
    assert attempt.ttft.actual_s == pytest.approx(0.36)
    assert attempt.ttft.ratio == pytest.approx(0.36 / 0.3)
    assert attempt.ttft.predicted_p90_s == 0.5
    assert explanation.tpot.ratio == pytest.approx(0.02 / 0.0163)


def test_the_request_is_described_without_its_text():
    explanation = explain(GOOD)
    assert (explanation.request_id, explanation.client_request_id) == ("r1", "mine")
    assert (explanation.tenant, explanation.request_class) == ("acme", "interactive")
    assert (explanation.input_tokens, explanation.prompt_blocks) == (3_000, 46)
    assert explanation.objective == Objective(ttft_s=4.0, tpot_s=0.1)


def test_candidates_are_shown_best_first_with_every_feature_and_the_chosen_one_marked():
    text = shown(GOOD)
    assert row(text, "→")[1:] == [
        *("engine-2", "0.310", "0.300", "0.0163", "0.050", "0.000", "0.250", "0.010"),
        *("2,944", "640", "7", "1", "42%", "0.08", "exact"),
    ]
    assert text.index("→") < text.index("engine-1")
    assert "engine-2 after 0.100 s, because least_cost." in text
    assert "best 2 of 40" in text


def test_the_length_that_was_expected_of_the_answer_is_shown_with_what_it_rests_on():
    decision = routed(0.01, expected_output_tokens=212.4, previous_output_tokens=190)
    assert "Expected of the answer: 212 tokens (the answer before it had 190)." in shown(
        [submitted(), decision]
    )
    assert "Expected of the answer" not in shown(GOOD)


def test_what_was_not_worked_out_or_not_recorded_is_a_dash():
    assert row(shown(GOOD), "engine-1")[3:7] == ["-", "-", "-", "-"]


def test_filters_are_counted_over_all_instances_also_those_not_shown():
    text = shown(GOOD)
    assert row(text, "no_kv_room") == ["no_kv_room", "37", "-"]
    assert row(text, "circuit_open") == ["circuit_open", "1", "engine-3"]


def test_filters_of_a_decision_that_did_not_count_them_are_counted_from_its_candidates():
    event = routed(0.01, filtered={}).event
    assert isinstance(event, Routed)
    assert filters_hit(event) == {"circuit_open": 1}


def test_each_attempt_of_a_retried_request_has_its_decision_and_its_failure():
    first, second = explain(RETRIED).attempts
    assert (first.instance, second.instance) == ("engine-2", "engine-1")
    assert first.failure is not None and first.failure.reason == "engine_connection_lost"
    assert first.ttft.actual_s is None
    assert second.ttft.actual_s == pytest.approx(0.3), "the first attempt's time is not held against it"
    text = shown(RETRIED)
    assert "Attempt 1: engine-2" in text and "Attempt 2: engine-1" in text
    assert "engine_connection_lost; 3,000 tokens in and 0 out were wasted" in text


def test_the_same_answer_given_twice_is_one_decision_and_another_replicas_answer_is_shown_as_not_followed():
    twice = [*GOOD[:4], routed(0.02), *GOOD[4:]]
    assert explain(twice).attempts[0].superseded == ()
    taken_over = [*GOOD[:3], routed(0.01, "engine-1"), *GOOD[3:]]
    (attempt,) = explain(taken_over).attempts
    assert attempt.decision is not None and attempt.decision.instance == "engine-2", (
        "where its token came from"
    )
    assert [other.instance for other in attempt.superseded] == ["engine-1"]
    assert "not followed: engine-1" in shown(taken_over)


def test_a_refused_request_shows_the_refusal():
    refusal = recorded(
        "refused", 0.01, status=429, reason="admission_slack", message="The pool is busy.", retry_after_s=3.0
    )
    events = [submitted(), refusal, ended("rejected", status=429, reason="admission_slack", instance=None)]
    explanation = explain(events)
    assert explanation.attempts == ()
    assert isinstance(explanation.refused, Refused)
    assert "The pool is busy. Retry after 3 s." in shown(events)


def test_the_sites_that_were_weighed_are_shown_with_what_each_would_cost_and_why_not():
    here = Weighed(site="B", pool="llama-70b@1", cost_s=4.2, predicted_ttft_s=3.1, out="not_better")
    there = Weighed(
        site="C", pool="llama-70b@1", cost_s=0.7, predicted_ttft_s=0.6, way_s=0.061, reused_tokens=512
    )
    law = Weighed(site="D", pool="llama-70b@1", out="region_not_permitted")
    placed = recorded(
        "placed",
        0.01,
        request=SPEC,
        reason="better_elsewhere",
        weighed=(there, here, law),
        out={"region_not_permitted": 31, "not_better": 1},
    )
    again = recorded("placed", 0.02, request=SPEC, reason="better_elsewhere", weighed=(there, here, law))
    events = [submitted(), placed, again, ended()]
    assert len(explain(events).placements) == 1
    text = shown(events)
    assert "better_elsewhere" in text and "0.061" in text
    assert "not_better" in text and "Besides: 30 region_not_permitted." in text


def test_a_refusal_by_fleetmind_says_of_each_site_why():
    refusal = recorded(
        "refused",
        0.01,
        status=403,
        reason="region_not_permitted",
        message="No.",
        weighed=(Weighed(site="C", pool="llama-70b@1", out="region_unknown"),),
        out={"region_unknown": 1},
    )
    events = [
        submitted(),
        refusal,
        ended("rejected", status=403, reason="region_not_permitted", instance=None),
    ]
    assert "region_unknown" in shown(events)


def test_a_retry_that_nobody_takes_has_no_second_attempt_at_the_instance_that_failed():
    events = [*RETRIED[:4], ended("failed", attempt=2, instance="engine-2", reason="retry_no_ready_instance")]
    assert [attempt.attempt for attempt in explain(events).attempts] == [1]


def test_a_request_that_ingress_routed_alone_says_so():
    events = [submitted(), *GOOD[4:5], ended(degraded=True)]
    (attempt,) = explain(events).attempts
    assert attempt.decision is None
    assert "ingress alone sent it to engine-2" in shown(events)


def test_a_request_under_way_is_explained_as_far_as_it_got():
    explanation = explain(GOOD[:4], time_scale=TIME_SCALE)
    assert explanation.ended is None
    assert explanation.attempts[0].decided_after_s == pytest.approx(0.1)
    assert "under way" in shown(GOOD[:4])


@pytest.mark.parametrize("missing", range(len(GOOD)))
def test_a_lost_event_costs_only_what_it_said(missing: int):
    rest = [each for number, each in enumerate(GOOD) if number != missing]
    explanation = explain(rest)
    assert explanation.request_id == "r1"
    assert explanation.client_request_id == "mine"
    assert shown(rest)


def test_json_holds_the_candidates_and_decodes_again():
    as_json = msgspec.json.decode(msgspec.json.encode(explain(GOOD)))
    assert as_json["class"] == "interactive"
    assert as_json["attempts"][0]["decision"]["candidates"][0]["index"] == "exact"
    assert as_json["attempts"][0]["ttft"]["ratio"] == pytest.approx(1.2)
    assert [step["event"] for step in as_json["steps"]] == [
        *("submitted", "placed", "admitted", "routed", "first_token", "completed"),
    ]


def test_every_kind_of_event_has_a_line_of_its_own():
    kinds = {type(each.event) for each in [*GOOD, *RETRIED]} | {Refused}
    assert kinds == {Submitted, Placed, Admitted, Routed, FirstToken, Retried, Ended, Refused}
    assert all(step.detail for step in [*explain(GOOD).steps, *explain(RETRIED).steps])
