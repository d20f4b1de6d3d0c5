"""A request has exactly one outcome, whatever happens to it and in whatever order."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.policy.happenings import (
    Ask,
    CallEngine,
    ClientGone,
    DeadlinePassed,
    DecisionTimedOut,
    EngineCompleted,
    EngineFailed,
    EngineRejected,
    FallBack,
    FellBack,
    Finish,
    FirstTokenArrived,
    Happening,
    IngressStopping,
    Instant,
    InternalError,
    TurnedAway,
    Usage,
    Wait,
)
from ingress.policy.lifecycle import Lifecycle, Phase
from tokenfleet.contracts.requests import (
    Admitted,
    Ended,
    FirstToken,
    Objective,
    Queued,
    Refused,
    RequestSpec,
    Retried,
    Routed,
    Submitted,
)
from tokenfleet.engine.gpu_time import decode_gpu_s, prefill_gpu_s
from tokenfleet.engine.profile import LLAMA70B_TP4_H100

SPEC = RequestSpec(
    model="llama",
    entry_site="local",
    ingress="ingress-1",
    input_tokens=100,
    max_output_tokens=50,
    block_size_tokens=16,
    stream=True,
    client_request_id="mine",
)
OBJECTIVE = Objective(ttft_s=4.0, tpot_s=0.1)


def at(seconds: float) -> Instant:
    return Instant(engine_s=seconds, unix_ns=int(seconds * 1e9))


def life(request: RequestSpec = SPEC, time_scale: float = 1.0) -> Lifecycle:
    return Lifecycle(
        request_id="r1", tenant="t1", site="local", request=request, at=at(10.0), time_scale=time_scale
    )


def bounded(seconds: float) -> RequestSpec:
    """Nobody waits for the answer longer than this."""
    return msgspec.structs.replace(SPEC, deadline_ns=at(10.0 + seconds).unix_ns)


def common(attempt: int = 1, request_id: str = "r1") -> dict[str, Any]:
    return {
        "event_id": f"{request_id}.{attempt}.x",
        "request_id": request_id,
        "attempt": attempt,
        "tenant": "t1",
        "pool": "llama@v1",
        "site": "local",
        "time_ns": 1,
        "request_class": "interactive",
    }


def admitted(attempt: int = 1, queue_wait_s: float = 0.0, timeout_s: float | None = None) -> Admitted:
    return Admitted(
        **common(attempt),
        request=SPEC,
        objective=OBJECTIVE,
        reason="fits",
        predicted_ttft_s=0.5,
        queue_wait_s=queue_wait_s,
        timeout_s=timeout_s,
    )


def queued(attempt: int = 1, timeout_s: float | None = None) -> Queued:
    return Queued(
        **common(attempt),
        reason="waiting",
        position=3,
        expected_start_s=2.0,
        valid_s=5.0,
        timeout_s=timeout_s,
    )


def routed(attempt: int = 1, instance: str = "a") -> Routed:
    return Routed(
        **common(attempt),
        instance=instance,
        generation=1,
        input_tokens=100,
        reused_tokens=0,
        predicted_ttft_s=0.4,
        predicted_tpot_s=0.03,
        reason="cheapest",
    )


def refused(attempt: int = 1) -> Refused:
    return Refused(**common(attempt), status=429, reason="slack", message="too busy", retry_after_s=2.0)


def ended(step: object) -> Ended:
    assert isinstance(step, Finish)
    return step.ended


HAPPENINGS: st.SearchStrategy[Happening] = st.one_of(
    st.integers(1, 3).map(admitted),
    st.integers(1, 3).map(queued),
    st.builds(routed, st.integers(1, 3), st.sampled_from(["a", "b"])),
    st.integers(1, 3).map(refused),
    st.just(DecisionTimedOut()),
    st.sampled_from([FellBack(None), FellBack("c", "llama@v1", "local")]),
    st.just(FirstTokenArrived()),
    st.builds(EngineCompleted, st.just("stop"), st.integers(0, 9), st.sampled_from([None, Usage(9, 3, 1)])),
    st.just(EngineRejected(400)),
    st.builds(EngineFailed, st.just("engine_connection_lost"), st.booleans(), st.integers(0, 5)),
    st.sampled_from([DeadlinePassed(3), ClientGone(3), IngressStopping(3), InternalError(3)]),
    st.just(TurnedAway(503, "stopping", "no")),
)


@given(st.lists(HAPPENINGS, max_size=25))
def test_any_sequence_of_happenings_gives_at_most_one_outcome_and_nothing_after_it(
    happenings: list[Happening],
) -> None:
    machine = life()
    machine.begin()
    finish: Finish | None = None
    for count, happening in enumerate(happenings):
        step = machine.receive(happening, at(11.0 + count))
        facts = machine.take_facts()
        if finish is not None:
            assert step is finish
            assert facts == []
        elif isinstance(step, Finish):
            finish = step
            assert step.ended.event_id == "r1.end"
            assert step.ended.request_id == "r1"
        assert machine.attempt <= 2
        assert (machine.phase is Phase.OVER) == (finish is not None)


@given(st.lists(HAPPENINGS, max_size=25))
def test_an_interruption_ends_a_request_in_any_state(happenings: list[Happening]) -> None:
    machine = life()
    machine.begin()
    for happening in happenings:
        machine.receive(happening, at(11.0))
    before = machine.finish
    step = machine.receive(ClientGone(), at(12.0))
    assert step is (before or machine.finish)
    assert ended(step).outcome is not None
    if before is None:
        assert ended(step).outcome == "cancelled"


@given(st.lists(HAPPENINGS, max_size=25))
def test_after_a_first_token_no_other_attempt_is_made(happenings: list[Happening]) -> None:
    machine = life()
    machine.begin()
    machine.receive(routed(), at(11.0))
    machine.receive(FirstTokenArrived(), at(12.0))
    machine.take_facts()
    for happening in happenings:
        machine.receive(happening, at(13.0))
    assert machine.attempt == 1
    assert machine.take_facts() == []


def test_a_request_that_goes_well_is_completed_with_its_times_and_its_tokens() -> None:
    machine = life()
    step = machine.begin()
    assert isinstance(step, Ask)
    assert step.submitted.pool == "llama", "no pool is placed yet"
    assert machine.receive(admitted(), at(10.1)) == Wait()
    assert machine.receive(routed(), at(10.2)) == CallEngine("a")
    machine.receive(FirstTokenArrived(), at(10.7))
    (fact,) = machine.take_facts()
    assert isinstance(fact, FirstToken)
    assert fact.ttft_s == pytest.approx(0.7)
    outcome = ended(machine.receive(EngineCompleted("length", 9, Usage(120, 11, 64)), at(11.7)))
    assert outcome.outcome == "completed"
    assert outcome.reason == "length"
    assert outcome.pool == "llama@v1"
    assert outcome.request_class == "interactive"
    assert outcome.admitted
    assert not outcome.degraded
    assert outcome.objective == OBJECTIVE
    assert (outcome.input_tokens, outcome.output_tokens, outcome.reused_tokens) == (120, 11, 64)
    assert outcome.tokens_exact
    assert outcome.ttft_s == pytest.approx(0.7)
    assert outcome.tpot_s == pytest.approx(1.0 / 10), "over the tokens after the first"
    assert outcome.e2e_s == pytest.approx(1.7)
    assert outcome.predicted_ttft_s == 0.4, "the router's prediction replaces the admission's"
    assert outcome.client_request_id == "mine"


def test_an_answer_that_was_not_streamed_has_no_ttft_and_no_tpot() -> None:
    machine = life()
    machine.begin()
    machine.receive(routed(), at(10.2))
    outcome = ended(machine.receive(EngineCompleted("stop", 0, Usage(100, 50)), at(12.0)))
    assert outcome.ttft_s is None
    assert outcome.tpot_s is None
    assert outcome.e2e_s == pytest.approx(2.0)


def test_without_usage_the_tokens_are_marked_as_estimates() -> None:
    machine = life()
    machine.begin()
    machine.receive(routed(), at(10.2))
    machine.receive(FirstTokenArrived(), at(10.3))
    outcome = ended(machine.receive(ClientGone(output_tokens=12), at(10.9)))
    assert outcome.outcome == "cancelled"
    assert outcome.output_tokens == 12
    assert outcome.input_tokens == 100
    assert not outcome.tokens_exact


def test_a_counted_prompt_is_exact_until_an_engine_may_have_begun_to_answer() -> None:
    def counted() -> Lifecycle:
        return Lifecycle(
            request_id="r1",
            tenant="t1",
            site="local",
            request=SPEC,
            at=at(10.0),
            time_scale=1.0,
            input_exact=True,
        )

    undecided, routed_away = counted(), counted()
    for machine in (undecided, routed_away):
        machine.begin()
    routed_away.receive(routed(), at(10.2))
    assert ended(undecided.receive(refused(), at(10.3))).tokens_exact
    assert not ended(routed_away.receive(ClientGone(output_tokens=0), at(10.3))).tokens_exact


def test_a_refusal_is_relayed_with_its_status_and_its_retry_after() -> None:
    machine = life()
    machine.begin()
    step = machine.receive(refused(), at(10.1))
    assert isinstance(step, Finish)
    assert step.ended.outcome == "rejected"
    assert step.ended.status == 429
    assert step.ended.reason == "slack"
    assert step.retry_after_s == 2.0


def test_silence_is_answered_by_submitting_the_same_event_again_then_by_routing_alone() -> None:
    machine = life()
    first = machine.begin()
    second = machine.receive(DecisionTimedOut(), at(11.0))
    assert isinstance(second, Ask)
    assert second == first, "the same event ids: everyone recognises the repetition"
    assert machine.receive(DecisionTimedOut(), at(12.0)) == FallBack(())
    assert machine.receive(FellBack("b", "llama@v2", "local"), at(12.0)) == CallEngine("b")
    outcome = ended(machine.receive(EngineCompleted("stop", 1), at(13.0)))
    assert outcome.degraded
    assert outcome.pool == "llama@v2"


def test_silence_with_no_ready_instance_is_a_503() -> None:
    machine = life()
    machine.begin()
    machine.receive(DecisionTimedOut(), at(11.0))
    machine.receive(DecisionTimedOut(), at(12.0))
    outcome = ended(machine.receive(FellBack(None), at(12.0)))
    assert (outcome.outcome, outcome.status, outcome.reason) == ("rejected", 503, "no_ready_instance")


def test_an_engine_that_fails_before_a_token_is_replaced_once_and_avoided() -> None:
    machine = life()
    machine.begin()
    machine.receive(admitted(), at(10.1))
    machine.receive(routed(instance="a"), at(10.2))
    step = machine.receive(EngineFailed("engine_connection_lost"), at(11.0))
    assert isinstance(step, Ask)
    assert step.submitted.attempt == 2
    assert step.submitted.event_id == "r1.2.submitted"
    assert step.submitted.request.excluded_instances == ("a",)
    (fact,) = machine.take_facts()
    assert isinstance(fact, Retried)
    assert (fact.attempt, fact.instance, fact.input_tokens) == (1, "a", 100)
    assert machine.receive(routed(attempt=1, instance="a"), at(11.1)) == Wait(), (
        "an answer to attempt 1 is late"
    )
    assert machine.receive(routed(attempt=2, instance="b"), at(11.2)) == CallEngine("b")
    outcome = ended(machine.receive(EngineFailed("engine_silent"), at(12.0)))
    assert (outcome.outcome, outcome.status, outcome.attempt) == ("failed", 502, 2)
    assert outcome.retried_input_tokens == 100


def test_an_engine_that_was_never_reached_wasted_nothing() -> None:
    machine = life()
    machine.begin()
    machine.receive(routed(), at(10.2))
    machine.receive(EngineFailed("engine_unreachable", reached=False), at(10.3))
    (fact,) = machine.take_facts()
    assert isinstance(fact, Retried)
    assert fact.input_tokens == 0


def test_a_retry_that_is_refused_is_a_failure_because_the_request_had_been_taken() -> None:
    machine = life()
    machine.begin()
    machine.receive(admitted(), at(10.1))
    machine.receive(routed(), at(10.2))
    machine.receive(EngineFailed("engine_unreachable", reached=False), at(10.3))
    outcome = ended(machine.receive(refused(attempt=2), at(10.4)))
    assert (outcome.outcome, outcome.reason) == ("failed", "retry_slack")


def test_an_engine_that_blames_the_request_is_not_tried_again() -> None:
    machine = life()
    machine.begin()
    machine.receive(routed(), at(10.2))
    outcome = ended(machine.receive(EngineRejected(422), at(10.3)))
    assert (outcome.outcome, outcome.reason, outcome.status) == ("rejected", "engine_rejected", 422)


@pytest.mark.parametrize(
    ("happening", "outcome", "status"),
    [
        (DeadlinePassed(), "timed_out", 504),
        (ClientGone(), "cancelled", 499),
        (IngressStopping(), "failed", 503),
        (InternalError(), "failed", 500),
    ],
)
def test_each_interruption_has_its_own_outcome(happening: Happening, outcome: str, status: int) -> None:
    machine = life()
    machine.begin()
    end = ended(machine.receive(happening, at(10.5)))
    assert (end.outcome, end.status) == (outcome, status)


def test_answers_for_another_request_change_nothing() -> None:
    machine = life()
    machine.begin()
    stranger = msgspec.structs.replace(routed(), request_id="r2")
    assert machine.receive(stranger, at(10.2)) == Wait()
    assert machine.phase is Phase.DECIDING


def test_a_submission_carries_what_deciders_may_know() -> None:
    submitted = life().submitted()
    assert isinstance(submitted, Submitted)
    assert submitted.request == SPEC
    assert submitted.time_ns == at(10.0).unix_ns


# -- queued


def test_a_queued_request_waits_as_long_as_its_decider_said_and_is_then_answered() -> None:
    machine = life()
    machine.begin()
    assert machine.receive(queued(), at(10.1)) == Wait(5.0)
    assert machine.phase is Phase.QUEUED
    assert machine.receive(queued(), at(14.0)) == Wait(5.0), "said again"
    assert machine.receive(admitted(queue_wait_s=7.5), at(17.5)) == Wait(), "the router's turn: soon"
    assert machine.receive(routed(), at(17.6)) == CallEngine("a")
    outcome = ended(machine.receive(EngineCompleted("stop", 3), at(19.0)))
    assert outcome.queue_wait_s == 7.5
    assert outcome.admitted


def test_a_request_that_was_never_admitted_has_no_queue_wait() -> None:
    machine = life()
    machine.begin()
    machine.receive(queued(), at(10.1))
    assert ended(machine.receive(DeadlinePassed(), at(20.0))).queue_wait_s is None


def test_silence_after_queued_is_as_silence_of_any_decider() -> None:
    machine = life()
    first = machine.begin()
    machine.receive(queued(), at(10.1))
    assert machine.receive(DecisionTimedOut(), at(15.1)) == first
    assert machine.phase is Phase.DECIDING
    assert machine.receive(queued(), at(15.2)) == Wait(5.0), "another decider has it"
    assert machine.receive(DecisionTimedOut(), at(20.2)) == first, "each silence begins anew"
    assert machine.receive(DecisionTimedOut(), at(21.2)) == FallBack(())


def test_late_answers_to_another_attempt_do_not_shorten_the_wait_of_a_queued_request() -> None:
    machine = life()
    machine.begin()
    machine.receive(routed(), at(10.1))
    machine.receive(EngineFailed("engine_unreachable", reached=False), at(10.2))
    machine.receive(queued(attempt=2), at(10.3))
    assert machine.receive(queued(attempt=1), at(10.4)) == Wait(5.0)
    assert machine.receive(routed(attempt=2, instance="b"), at(10.5)) == CallEngine("b")


@pytest.mark.parametrize(
    ("happening", "outcome", "status", "reason"),
    [
        (ClientGone(), "cancelled", 499, "client_disconnected"),
        (DeadlinePassed(), "timed_out", 504, "deadline"),
        (IngressStopping(), "failed", 503, "ingress_stopped"),
        (refused(), "rejected", 429, "slack"),
    ],
)
@pytest.mark.parametrize("was_queued", [False, True])
def test_the_same_cause_has_the_same_code_whether_the_request_was_queued_or_not(
    happening: Happening, outcome: str, status: int, reason: str, was_queued: bool
) -> None:
    machine = life()
    machine.begin()
    if was_queued:
        machine.receive(queued(), at(10.1))
    end = ended(machine.receive(happening, at(12.0)))
    assert (end.outcome, end.status, end.reason, end.instance) == (outcome, status, reason, None)


# -- timeouts


def test_the_deadline_it_was_submitted_with_holds_until_its_class_is_known() -> None:
    assert life().deadline_s is None
    machine = life(bounded(600.0))
    assert machine.deadline_s == pytest.approx(610.0)
    machine.begin()
    machine.receive(queued(), at(10.1))
    assert machine.deadline_s == pytest.approx(610.0), "the class has none of its own"
    machine.receive(queued(timeout_s=30.0), at(10.1))
    assert machine.deadline_s == pytest.approx(40.0), "counted from submission"
    machine.receive(admitted(timeout_s=3600.0), at(12.0))
    assert machine.deadline_s == pytest.approx(3610.0)
    assert machine.submitted().request.deadline_ns == pytest.approx(at(3610.0).unix_ns, abs=10)


def test_deadlines_follow_the_time_scale() -> None:
    machine = life(bounded(60.0), time_scale=5.0)
    assert machine.deadline_s == pytest.approx(310.0)
    machine.begin()
    machine.receive(admitted(timeout_s=50.0), at(12.0))
    assert machine.deadline_s == pytest.approx(60.0)
    assert machine.submitted().request.deadline_ns == pytest.approx(at(20.0).unix_ns, abs=10)


# -- retries


def test_without_budget_a_failure_is_not_tried_again() -> None:
    machine = life()
    machine.begin()
    machine.receive(routed(), at(10.2))
    step = machine.receive(EngineFailed("engine_connection_lost", may_retry=False), at(11.0))
    outcome = ended(step)
    assert (outcome.outcome, outcome.status, outcome.reason) == ("failed", 503, "retry_budget_exhausted")
    assert isinstance(step, Finish)
    assert step.retry_after_s is not None
    assert machine.take_facts() == [], "nothing was tried again"


def test_past_its_deadline_a_failure_is_not_tried_again() -> None:
    machine = life(bounded(5.0))
    machine.begin()
    machine.receive(routed(), at(10.2))
    assert machine.retriable(at(14.9))
    assert not machine.retriable(at(15.0))
    outcome = ended(machine.receive(EngineFailed("engine_connection_lost"), at(15.0)))
    assert (outcome.outcome, outcome.status, outcome.reason) == ("timed_out", 504, "deadline")


def test_budget_is_asked_for_only_where_a_retry_is_possible() -> None:
    machine = life()
    machine.begin()
    assert not machine.retriable(at(10.1)), "no engine has it"
    machine.receive(routed(), at(10.2))
    assert machine.retriable(at(10.3))
    machine.receive(EngineFailed("engine_unreachable", reached=False), at(10.4))
    machine.receive(routed(attempt=2, instance="b"), at(10.5))
    assert not machine.retriable(at(10.6)), "once"
    relaying = life()
    relaying.begin()
    relaying.receive(routed(), at(10.2))
    relaying.receive(FirstTokenArrived(), at(10.3))
    assert not relaying.retriable(at(10.4)), "the client has a token"


@given(st.lists(HAPPENINGS, max_size=25))
def test_budget_left_unasked_is_never_needed(happenings: list[Happening]) -> None:
    machine = life()
    machine.begin()
    for happening in happenings:
        was_retriable, attempt = machine.retriable(at(11.0)), machine.attempt
        machine.receive(happening, at(11.0))
        assert machine.attempt == attempt or was_retriable


def test_gpu_time_is_told_of_what_each_engine_computed_and_of_nothing_else() -> None:
    machine = life()
    machine.begin()
    machine.receive(routed(), at(10.2))
    machine.profile = LLAMA70B_TP4_H100
    machine.receive(EngineFailed("engine_closed", reached=True, output_tokens=0), at(10.3))
    assert machine.profile is LLAMA70B_TP4_H100
    machine.receive(routed(attempt=2), at(10.4))
    assert machine.profile is None, "the next engine may be another one"
    machine.profile = LLAMA70B_TP4_H100
    done = EngineCompleted("stop", 7, Usage(input_tokens=100, output_tokens=7, reused_tokens=64))
    outcome = ended(machine.receive(done, at(11.0)))
    assert outcome.retried_gpu_s == prefill_gpu_s(LLAMA70B_TP4_H100, 100, 0)
    assert outcome.prefill_gpu_s == prefill_gpu_s(LLAMA70B_TP4_H100, 36, 64)
    assert outcome.decode_gpu_s == decode_gpu_s(LLAMA70B_TP4_H100, 7, 100)

    refusal = life()
    refusal.begin()
    outcome = ended(refusal.receive(refused(), at(10.1)))
    assert (outcome.prefill_gpu_s, outcome.decode_gpu_s, outcome.retried_gpu_s) == (None, None, 0.0)
