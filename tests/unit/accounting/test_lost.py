"""What is said of a request that nobody ended, and when."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.accounting.rows import BASE_NS, PROMISE, SECOND_NS

from goodput_accountant.policy.accounting import account
from goodput_accountant.policy.lost import LONGEST_NS, Asked, Submission, decide_ns, lost
from tokenfleet.contracts.requests import EVENT_TYPES, Event, RequestSpec, event_id

GOLDEN = Path(__file__).parents[2] / "contract" / "golden"
SCALE = 10.0
BOUND_NS = 900 * SECOND_NS
CLOSED_NS = BASE_NS + 1_000 * SECOND_NS
SPEC = RequestSpec(
    model="llama-70b",
    entry_site="here",
    ingress="ingress-1",
    input_tokens=900,
    max_output_tokens=10,
    block_size_tokens=16,
)
ASKED = Submission(
    request_id="r1",
    tenant="acme",
    site="here",
    time_ns=BASE_NS,
    request=Asked(
        model="llama-70b",
        input_tokens=900,
        stream=True,
        deadline_ns=BASE_NS + 60 * SECOND_NS,
        client_request_id="mine",
    ),
)


def fact(kind: str, *, attempt: int = 1, **fields: Any) -> Event:
    """An event of the request, as its decider said it."""
    common = {
        "event_id": event_id("r1", attempt, kind),
        "request_id": "r1",
        "attempt": attempt,
        "tenant": "acme",
        "pool": "llama-70b@1",
        "site": "there",
        "time_ns": BASE_NS + SECOND_NS,
        "request_class": "interactive",
    }
    return EVENT_TYPES[kind](**(common | fields))


def admitted(**fields: Any) -> Event:
    given = {"request": SPEC, "objective": PROMISE, "reason": "fits", "queue_wait_s": 2.0}
    return fact("admitted", **(given | {"predicted_ttft_s": 3.5} | fields))


def routed(instance: str = "engine-1", **fields: Any) -> Event:
    given = {"generation": 1, "input_tokens": 1_000, "reused_tokens": 400, "reason": "least_cost"}
    predicted = {"predicted_ttft_s": 0.5, "predicted_tpot_s": 0.05}
    return fact("routed", instance=instance, **(given | predicted | fields))


def first_token(instance: str = "engine-1", **fields: Any) -> Event:
    return fact("first_token", instance=instance, ttft_s=2.6, **fields)


def closed(*facts: Event, asked: Submission = ASKED):
    return lost(asked, facts, closed_ns=CLOSED_NS, time_scale=SCALE)


def test_all_that_was_recorded_of_it_is_said():
    end = closed(fact("placed", request=SPEC, reason="only_site"), admitted(), routed(), first_token())
    assert (end.event_id, end.outcome, end.reason, end.status) == ("r1.lost", "lost", "no_outcome", 500)
    assert (end.pool, end.site, end.request_class) == ("llama-70b@1", "there", "interactive")
    assert (end.model, end.stream, end.client_request_id) == ("llama-70b", True, "mine")
    assert (end.admitted, end.degraded, end.instance, end.objective) == (True, False, "engine-1", PROMISE)
    assert (end.input_tokens, end.reused_tokens, end.output_tokens) == (1_000, 400, 0)
    assert (end.queue_wait_s, end.ttft_s, end.tpot_s) == (2.0, 2.6, None)
    assert (end.predicted_ttft_s, end.predicted_tpot_s) == (2.5, 0.05)
    assert not end.tokens_exact
    assert (end.submitted_ns, end.time_ns, end.e2e_s) == (BASE_NS, CLOSED_NS, 10_000.0)


def test_of_a_request_that_no_decider_answered_only_its_submission_is_known():
    end = closed()
    assert (end.pool, end.site, end.request_class) == ("llama-70b", "here", None)
    assert (end.admitted, end.instance, end.objective, end.ttft_s) == (False, None, None, None)
    assert (end.attempt, end.input_tokens, end.reused_tokens) == (1, 900, 0)


def test_without_a_first_token_nobody_knows_whether_an_engine_computed_anything():
    row = account(closed(admitted(), routed()))
    assert (row.instance, row.met, row.missed) == ("engine-1", False, ())
    assert (row.waste_cause, row.computed_tokens, row.wasted_tokens) == ("lost", 0, 0)


def test_after_a_first_token_what_was_not_expected_in_the_cache_was_computed_for_nothing():
    row = account(closed(admitted(), routed(), first_token()))
    assert (row.met, row.missed, row.revision) == (False, (), 0)
    assert (row.waste_cause, row.computed_tokens, row.wasted_input_tokens) == ("lost", 600, 600)


def test_a_first_token_that_came_too_late_is_the_only_term_that_can_be_judged():
    late = msgspec.structs.replace(first_token(), ttft_s=4.1)
    assert account(closed(admitted(), routed(), late)).missed == ("ttft",)


def test_a_promise_of_the_whole_answer_is_not_judged_by_when_it_was_closed():
    promised = msgspec.structs.replace(PROMISE, e2e_s=60.0)
    row = account(closed(admitted(objective=promised), routed()))
    assert (row.met, row.missed) == (False, ())


def test_an_answer_from_an_instance_that_no_decider_chose_was_routed_by_ingress_alone():
    end = closed(admitted(), first_token("engine-9"))
    assert (end.degraded, end.instance, end.reused_tokens) == (True, "engine-9", 0)


def test_a_second_attempt_leaves_the_first_as_retried():
    retried = fact("retried", instance="engine-1", reason="engine_error", input_tokens=1_000, output_tokens=3)
    again = (admitted(attempt=2), routed("engine-2", attempt=2), first_token("engine-2", attempt=2))
    end = closed(admitted(), routed(), retried, *again)
    assert (end.attempt, end.instance) == (2, "engine-2")
    assert (end.retried_input_tokens, end.retried_output_tokens) == (1_000, 3)


def test_of_two_answers_to_the_same_question_the_first_counts_as_it_did_for_ingress():
    assert closed(routed("engine-1"), routed("engine-2")).instance == "engine-1"


FACTS = [
    fact("placed", request=SPEC, reason="only_site"),
    admitted(),
    routed(),
    fact("retried", instance="engine-1", reason="engine_error", input_tokens=1_000),
    routed("engine-2", attempt=2),
    first_token("engine-2", attempt=2),
]


@given(st.permutations(FACTS), st.lists(st.sampled_from(FACTS)))
def test_neither_order_nor_repetition_of_its_events_changes_what_is_said(
    order: list[Event], more: list[Event]
):
    assert closed(*order, *more) == closed(*FACTS)


@given(st.lists(st.sampled_from(FACTS)))
def test_whatever_is_missing_its_end_can_be_booked(facts: list[Event]):
    row = account(closed(*facts))
    assert (row.outcome, row.revision, row.output_tokens) == ("lost", 0, 0)


@pytest.mark.parametrize(
    ("case", "deadline_s", "facts", "decided_after_s"),
    [
        ("by the deadline it was submitted with", 60, [], 960),
        ("without one, from its submission", 0, [], 900),
        ("a deadline before the submission is none", -60, [], 900),
        # 1,200 engine seconds are 120 seconds here.
        ("its class may give it longer", 60, [admitted(timeout_s=1_200.0)], 1_020),
        ("while it waits, too", 60, [fact("queued", reason="full", position=1, expected_start_s=1.0, valid_s=5.0, timeout_s=3_000.0)], 1_200),
        ("or shorter", 60, [admitted(timeout_s=100.0)], 910),
        ("later its events would be gone", 10**9, [], LONGEST_NS // SECOND_NS + 900),
    ],
)  # fmt: skip
def test_it_is_lost_when_its_deadline_has_passed_by_the_bound(
    case: str, deadline_s: int, facts: list[Event], decided_after_s: int
):
    request = msgspec.structs.replace(ASKED.request, deadline_ns=max(0, BASE_NS + deadline_s * SECOND_NS))
    if deadline_s == 0:
        request = msgspec.structs.replace(request, deadline_ns=0)
    asked = msgspec.structs.replace(ASKED, request=request)
    assert decide_ns(asked, facts, SCALE, BOUND_NS) == BASE_NS + decided_after_s * SECOND_NS, case


def test_a_submission_as_version_1_wrote_it_is_understood():
    for name in ("submitted.v1", "submitted.slomax.v1"):
        asked = msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=Submission)
        end = lost(asked, (), closed_ns=asked.time_ns + SECOND_NS, time_scale=1.0)
        assert (end.request_id, end.model) == (asked.request_id, asked.request.model)
        assert account(end).submitted_ns == asked.time_ns
