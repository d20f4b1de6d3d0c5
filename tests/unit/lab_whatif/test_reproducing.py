"""A recording is run again as it was; where that fails, it is said, and why."""

import msgspec
import pytest
from unit.lab_whatif.recorded import (
    changed,
    compare,
    run_events,
    situation,
    situations,
    window,
)

from lab.sim.cluster import Failure
from lab.whatif.whatif import Asked
from tokenfleet.contracts.policy import ClassObjective, Policy, Tenant

NAMES = [f"i{number}" for number in range(4)]
WHOLE = situations([situation(NAMES)])


@pytest.fixture(scope="module")
def events():
    return run_events()


@pytest.fixture(scope="module")
def whole(events):
    return compare(WHOLE + events)


def test_a_recording_that_the_lab_made_reproduces_its_own_goodput(whole):
    comparison = whole
    assert comparison.recorded["goodput_tokens_per_s"] > 100
    assert comparison.trust.trusted
    assert abs(comparison.trust.goodput_off or 0.0) < 0.02
    assert comparison.rerun["completed"] == comparison.recorded["completed"]
    assert comparison.what_if is None and comparison.difference == {}


def test_identical_seeds_give_identical_figures_whatever_the_order_of_the_messages_and_however_often_they_come(
    events, whole
):
    assert compare([*reversed(events), *events, *WHOLE, *WHOLE]) == whole


def test_half_of_the_instances_missing_is_not_to_be_trusted_and_what_differs_is_named(events):
    trust = compare(situations([situation(NAMES[:2])]) + events).trust
    assert not trust.trusted
    assert (trust.goodput_off or 0.0) < -0.05
    assert any(line.startswith("TTFT P50") for line in trust.measured)
    assert any(line.startswith("goodput") for line in trust.measured)


def test_admission_is_run_again_too_and_refuses_about_as_many():
    policy = Policy()
    overload = run_events(policy, rate_per_s=3.0)
    comparison = compare(situations([situation(NAMES, policy=policy)]) + overload)
    assert comparison.recorded["refused"] > 0
    assert comparison.rerun["refused"] == pytest.approx(comparison.recorded["refused"], abs=4)
    assert comparison.trust.trusted


def test_the_lengths_of_answers_that_nobody_saw_are_drawn_from_those_of_their_class_and_that_is_said(events):
    refused = events
    for number in range(10, 30):
        refused = changed(refused, f"r{number}", outcome="rejected", reason="admission_slack", status=429)
    comparison = compare(WHOLE + refused)
    assert any("of the answers are drawn" in line for line in comparison.trust.likely)
    assert comparison.rerun["completed"] > comparison.recorded["completed"]


def test_an_instance_that_died_and_came_back_does_so_again():
    failing = run_events(failures=(Failure(instance="i0", at_s=20.0, back_s=50.0),))
    back = situation(NAMES, 50.0)
    (group,) = back.groups
    back = msgspec.structs.replace(
        back, groups=(msgspec.structs.replace(group, generations={**group.generations, "i0": 2}),)
    )
    said = situations([situation(NAMES), situation(NAMES[1:], 21.5), back])
    comparison = compare(said + failing)
    assert comparison.trust.trusted
    assert any("the fleet changed" in line for line in comparison.trust.likely)


def test_the_window_counts_its_own_requests_and_runs_those_around_it_as_company(events):
    comparison = compare(WHOLE + events, of=window(30.0, 60.0, warm_up_s=30.0))
    assert 20 < comparison.requests < 100
    assert comparison.company > 40
    assert comparison.rerun["offered"] == comparison.recorded["offered"] == comparison.requests
    cold = compare(WHOLE + events, of=window(30.0, 60.0))
    assert cold.company < comparison.company
    assert cold.rerun["prefix_reuse"] < comparison.rerun["prefix_reuse"], "its caches were empty"


def test_a_client_that_left_leaves_again(events):
    left = changed(events, "r40", outcome="cancelled", e2e_s=0.2, output_tokens=0, ttft_s=None, tpot_s=None)
    comparison = compare(WHOLE + left)
    assert comparison.recorded["cancelled"] == comparison.rerun["cancelled"] == 1
    assert any("clients that left" in note for note in comparison.notes)


def test_what_its_ingress_turned_away_stays_turned_away_in_every_column(events):
    without = [entry for entry in events if b'"r7.1.submitted"' not in entry[1]]
    limited = changed(without, "r7", outcome="rejected", reason="tenant_token_rate", status=429)
    comparison = compare(WHOLE + limited)
    assert comparison.recorded["refused"] == comparison.rerun["refused"]
    assert comparison.recorded["offered"] == comparison.rerun["offered"] == 160


def test_a_tenants_own_promises_are_judged_and_its_key_was_never_needed():
    acme = Tenant(tenant="tenant-1", objectives={"interactive": ClassObjective(ttft_s=0.01, tpot_s=0.1)})
    strict = compare(situations([situation(NAMES, tenants=(acme,))]) + run_events(tenant=acme))
    assert strict.rerun["class.interactive"] < strict.recorded["class.interactive"]


def test_events_that_are_missing_or_unreadable_are_counted(events):
    missing = [
        entry for entry in events if b'"r5.end"' not in entry[1] and b'"r6.1.submitted"' not in entry[1]
    ]
    broken = [("tf.v1.local.request.m.submitted", b"{"), ("tf.v1.local.request.m.first_token", b"{}")]
    comparison = compare(WHOLE + missing + broken)
    said = " ".join(comparison.trust.likely)
    assert "1 requests have no recorded end" in said
    assert "1 requests have an end and no beginning" in said
    assert "1 messages could not be read" in said
    assert comparison.trust.trusted
    assert comparison.recorded["offered"] == comparison.rerun["offered"] == 158


def test_a_policy_that_changed_in_the_window_is_told_and_the_one_of_most_requests_is_run(events):
    other = situation(NAMES, 70.0, policy=Policy(admission=False, routing="round_robin"))
    comparison = compare(WHOLE + situations([other]) + events, Asked(seeds=1, processes=1))
    assert any("the policy changed 1 times" in line for line in comparison.trust.likely)
    assert comparison.trust.trusted
