"""Classes, promises, admission."""

import msgspec
import pytest
from fleets import PROFILE, request, view
from loads import decode, idle

from slomax.policy.admission import Admit, Refuse, decide
from slomax.policy.classify import classify, objective_for
from tokenfleet.contracts.policy import ClassObjective, Policy
from tokenfleet.contracts.requests import Objective
from tokenfleet.load import LoadView, OutputLengths

POLICY = Policy()
FLEET = [view("a"), view("b")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("interactive", "default")),
        ({"input_tokens": 16_001}, ("long_context", "input_tokens")),
        ({"service_tier": "flex"}, ("batch", "service_tier")),
        ({"task": "batch", "input_tokens": 50_000}, ("batch", "task")),
    ],
)
def test_classes(changes: dict[str, object], expected: tuple[str, str]):
    assert classify(msgspec.structs.replace(request(), **changes), POLICY) == expected


def test_ttft_is_promised_in_proportion_above_a_length():
    assert objective_for("interactive", request(1_000), POLICY) == Objective(ttft_s=4.0, tpot_s=0.1)
    assert objective_for("long_context", request(64_000), POLICY).ttft_s == pytest.approx(16.0)


def test_a_class_without_terms_promises_nothing():
    policy = Policy(objectives={"interactive": ClassObjective()})
    assert not objective_for("interactive", request(), policy).declared
    assert not objective_for("unheard_of", request(), policy).declared


def admission(tokens: int, load: LoadView, objective: Objective | None = None, share: float = 0.4):
    spec = request(tokens)
    terms = objective or objective_for("interactive", spec, POLICY)
    return decide(spec, terms, FLEET, load, OutputLengths(), 0.0, wait_share_of_slack=share)


def busy(tokens: int) -> LoadView:
    load = idle("a", "b")
    for name in ("a", "b"):
        load.routed(f"on-{name}", 1, name, tokens, 0, 0.0)
    return load


def test_an_idle_fleet_admits_even_the_longest_prompt():
    assert isinstance(admission(120_000, idle("a", "b")), Admit)


def test_one_free_instance_is_enough():
    load = idle("a", "b")
    load.routed("r", 1, "a", 100_000, 0, 0.0)
    assert isinstance(admission(1_000, load), Admit)


def test_a_wait_beyond_the_slack_is_refused_early_with_a_time_to_come_back():
    decision = admission(1_000, busy(60_000))
    assert isinstance(decision, Refuse)
    assert (decision.status, decision.reason) == (429, "predicted_to_miss_objective")
    assert decision.retry_after_s is not None and decision.retry_after_s >= 1


def test_the_same_wait_is_borne_by_a_long_prompt_whose_objective_leaves_more_slack():
    load = busy(25_000)
    assert isinstance(admission(1_000, load), Refuse)
    assert isinstance(admission(60_000, load), Admit)


def test_a_short_wait_refuses_nobody_however_little_slack_the_own_prefill_leaves():
    load = busy(2_000)
    assert isinstance(admission(45_000, load, Objective(ttft_s=4.0)), Admit)
    assert isinstance(admission(45_000, busy(20_000), Objective(ttft_s=4.0)), Refuse)


def test_a_wait_for_kv_room_is_a_wait():
    load = idle("a", "b")
    for name in ("a", "b"):
        for number in range(22):
            decode(
                load,
                f"{name}{number}",
                name,
                tokens=PROFILE.kv_capacity_tokens // 22,
                max_output_tokens=9_000,
            )
    decision = admission(100_000, load, Objective(ttft_s=15.0), share=0.01)
    assert isinstance(decision, Refuse) and decision.status == 429


def test_without_a_promise_nothing_is_refused():
    assert isinstance(admission(1_000, busy(100_000), Objective(e2e_s=3600)), Admit)


def test_no_instance_is_a_503_and_a_prompt_too_long_a_400():
    spec, terms = request(1_000), Objective(ttft_s=4.0)
    nothing = decide(spec, terms, [], LoadView(), OutputLengths(), 0.0, wait_share_of_slack=0.4)
    assert isinstance(nothing, Refuse) and nothing.status == 503
    too_long = admission(200_000, idle("a", "b"))
    assert isinstance(too_long, Refuse) and too_long.status == 400
