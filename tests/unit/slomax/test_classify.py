"""Classes and promises."""

import msgspec
import pytest
from fleets import request

from slomax.policy.classify import classify, entry_of, objective_for, promised_s
from tokenfleet.contracts.policy import ClassObjective, Policy, Tenant
from tokenfleet.contracts.requests import Objective
from tokenfleet.load import OutputLengths

POLICY = Policy()
ACME, GOLD = Tenant(tenant="acme"), Tenant(tenant="gold", tier="priority")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("interactive", "default")),
        ({"input_tokens": 16_001}, ("long_context", "input_tokens")),
        ({"service_tier": "flex"}, ("batch", "service_tier")),
        ({"task": "batch", "input_tokens": 50_000}, ("batch", "task")),
        ({"task": "long_context"}, ("long_context", "task")),
        ({"task": "interactive", "input_tokens": 50_000}, ("long_context", "input_tokens")),
    ],
)
def test_classes(changes: dict[str, object], expected: tuple[str, str]):
    assert classify(msgspec.structs.replace(request(), **changes), POLICY) == expected


def test_a_class_of_the_operators_own_is_named_by_the_client():
    policy = Policy(objectives=POLICY.objectives | {"agents": ClassObjective(ttft_s=1.0)})
    assert classify(request(task="agents"), policy) == ("agents", "task")
    assert classify(request(task="unheard_of"), policy) == ("interactive", "default")


def test_ttft_is_promised_in_proportion_above_a_length():
    assert objective_for("interactive", request(1_000), POLICY) == Objective(ttft_s=4.0, tpot_s=0.1)
    assert objective_for("long_context", request(64_000), POLICY).ttft_s == pytest.approx(16.0)


def test_a_class_without_terms_promises_nothing():
    policy = Policy(objectives={"interactive": ClassObjective()})
    assert not objective_for("interactive", request(), policy).declared
    assert not objective_for("unheard_of", request(), policy).declared


def test_anybody_may_ask_for_more_time_and_only_priority_for_less():
    loose, tight = Objective(ttft_s=9.0, tpot_s=0.2), Objective(ttft_s=1.0, tpot_s=0.02)
    assert objective_for("interactive", request(objective=loose), POLICY, ACME) == loose
    assert objective_for("interactive", request(objective=tight), POLICY, ACME) == Objective(
        ttft_s=4.0, tpot_s=0.1
    )
    assert objective_for("interactive", request(objective=tight), POLICY, GOLD) == tight


def test_a_tenants_own_objectives_come_before_the_policys():
    tenant = Tenant(tenant="acme", objectives={"interactive": ClassObjective(ttft_s=2.0)})
    assert objective_for("interactive", request(), POLICY, tenant) == Objective(ttft_s=2.0)


def entry(tenant: Tenant = ACME, left_s: float = 600.0, age_s: float = 0.0, **changes: object):
    return entry_of("r", 1, request(**changes), tenant, POLICY, 100.0 - age_s, 100.0, left_s)


def test_a_request_may_wait_as_long_as_its_queue_its_client_and_its_deadline_let_it():
    assert entry().expires_s == pytest.approx(160.0)  # the policy's queue.wait_s
    assert entry(left_s=10.0).expires_s == pytest.approx(110.0)
    assert entry(queue_ttl_s=5.0, age_s=2.0).expires_s == pytest.approx(103.0)
    assert entry(task="batch", left_s=7_200.0).expires_s == pytest.approx(7_300.0)


def test_a_batch_is_promised_its_deadline_less_the_time_its_answer_takes():
    line = entry(task="batch", left_s=1_000.0, due_ns=1)
    assert line.due_s == pytest.approx(1_100.0)
    promised = promised_s(line, OutputLengths())
    assert promised is not None and 900.0 < promised < 1_000.0


def test_of_several_promises_the_first_to_be_broken_counts():
    one = entry()
    one.objective = Objective(ttft_s=30.0, e2e_s=20.0, tpot_s=0.1)
    promised = promised_s(one, OutputLengths())
    assert promised is not None and promised < 20.0
