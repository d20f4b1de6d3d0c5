"""Start it, keep it waiting, or say no."""

import msgspec
import pytest
from fleets import PROFILE, request, view
from loads import decode, idle
from slomax_pool import Pool

from slomax.policy.admission import Keep, Margins, Refuse, Start, too_late_to_queue
from slomax.policy.classify import entry_of
from slomax.policy.feedback import WINDOW_S
from slomax.policy.scheduler import DESERTED_S
from tokenfleet.contracts.policy import ClassObjective, Policy, QueueLimits, Tenant
from tokenfleet.contracts.requests import Objective

MARGINS = Margins(0.4, 0.8, 1.0)


def refusal(verdict: object) -> Refuse:
    assert isinstance(verdict, Refuse)
    return verdict


def test_an_idle_fleet_takes_even_the_longest_prompt_at_once():
    assert isinstance(Pool("a", "b").submit("r", 120_000), Start)


def test_one_free_instance_is_enough():
    pool = Pool("a", "b")
    pool.occupy("a", 100_000)
    verdict = pool.submit("r", 1_000)
    assert isinstance(verdict, Start) and verdict.instance == "b"


def test_while_no_engine_can_begin_soon_a_request_waits_here_and_not_there():
    pool = Pool("a", "b")
    pool.occupy("a", 15_000)
    pool.occupy("b", 20_000)
    assert isinstance(pool.submit("r", 1_000), Keep)
    pool.wait(3.0)
    assert pool.started == ["r"]


def test_a_wait_beyond_the_slack_is_refused_early_with_a_time_to_come_back():
    pool = Pool("a", "b")
    pool.occupy("a"), pool.occupy("b")
    refused = refusal(pool.submit("r", 1_000))
    assert (refused.status, refused.reason) == (429, "predicted_to_miss_objective")
    assert refused.retry_after_s is not None and refused.retry_after_s >= 1


def test_the_same_wait_is_borne_by_a_long_prompt_whose_objective_leaves_more_slack():
    pool = Pool("a", "b")
    pool.occupy("a", 38_000), pool.occupy("b", 38_000)
    refusal(pool.submit("short", 1_000))
    assert isinstance(pool.submit("long", 60_000), Keep)


def waiting(tokens: int, objective: Objective) -> Refuse | None:
    """What becomes of a request that would wait 0.2 s."""
    entry = entry_of("r", 1, request(tokens), Tenant(tenant="acme"), Policy(), 0.0, 0.0, 60.0)
    entry.objective, entry.promised_s, entry.own_prefill_s = objective, objective.ttft_s, 3.95
    return too_late_to_queue(entry, 0.2, MARGINS)


def test_a_short_wait_refuses_nobody_however_little_slack_the_own_prefill_leaves():
    assert waiting(45_000, Objective(ttft_s=4.0)) is None


def test_without_a_promise_nothing_is_refused_for_its_wait():
    pool = Pool("a", policy=Policy(objectives={"interactive": ClassObjective()}))
    pool.occupy("a", 100_000)
    assert isinstance(pool.submit("r", 1_000), Keep)


def test_a_start_that_would_push_others_over_waits_until_it_does_no_harm_or_its_own_time_is_up():
    pool = Pool("a")
    for number in range(6):
        decode(pool.load, f"d{number}", "a", tpot_objective_s=0.03, max_output_tokens=120)
    verdict = pool.submit("r", 16_000)
    assert isinstance(verdict, Keep) and verdict.reason == "would_harm_others"
    for number in range(6):
        pool.load.ended(f"d{number}", 1, 0.05)
    pool.wait(0.2)
    assert pool.started == ["r"]


def test_no_instance_is_a_503_and_a_prompt_too_long_a_400():
    pool = Pool("a", "b")
    assert refusal(pool.submit("r", 200_000)).status == 400
    pool.instances = []
    assert refusal(pool.submit("r", 1_000)).status == 503


def test_when_the_last_instance_leaves_those_that_wait_are_told_what_a_new_one_is_unless_it_comes_back():
    pool = Pool("a", policy=Policy(objectives={"interactive": ClassObjective(ttft_s=60.0)}))
    pool.occupy("a", 90_000)
    pool.submit("waiting", 1_000)
    pool.submit("line", 1_000, task="batch", service_tier="flex", left_s=86_400.0, due_ns=1)
    instances, pool.instances = pool.instances, []
    pool.wait(DESERTED_S - 1.0)
    pool.instances = instances
    pool.wait(0.2)
    assert not pool.refused, "it was away for less than it takes to give up"
    pool.instances = []
    pool.wait(DESERTED_S + 0.2)
    assert list(pool.refused) == ["waiting"], "batch has time to wait for another instance"
    assert pool.refused["waiting"] == pool.submit("new", 1_000)
    assert pool.refused["waiting"].status == 503


def test_a_prompt_beyond_the_kv_of_every_instance_is_the_clients_fault_not_the_fleets():
    pool = Pool("a")
    small = msgspec.structs.replace(PROFILE, kv_capacity_tokens=10_000)
    pool.instances = [view("a", profile=small)]
    refused = refusal(pool.submit("r", 20_000))
    assert (refused.status, refused.reason) == (400, "context_length_exceeded")


def test_a_full_queue_says_so_with_the_same_code_as_any_contention():
    pool = Pool("a", policy=Policy(queue=QueueLimits(requests=1)))
    pool.occupy("a", 20_000)
    assert isinstance(pool.submit("r1", 1_000), Keep)
    refused = refusal(pool.submit("r2", 1_000))
    assert (refused.status, refused.reason) == (429, "queue_full")


def test_a_queue_ttl_that_passes_is_contention_too():
    pool = Pool("a")
    pool.occupy("a", 22_000)
    assert isinstance(pool.submit("r", 1_000, queue_ttl_s=1.0), Keep)
    pool.wait(1.2)
    assert (pool.refused["r"].status, pool.refused["r"].reason) == (429, "queue_ttl")


def test_a_retry_was_promised_its_chance_already():
    pool = Pool("a", "b")
    pool.occupy("a"), pool.occupy("b")
    entry = entry_of("r", 2, request(1_000), Tenant(tenant="acme"), pool.policy, 0.0, 0.0, 60.0)
    verdict = pool.admission.submit(entry, pool.instances, pool.policy, 0.0)
    assert isinstance(verdict, Start) and verdict.reason == "retry"


def test_admission_off_refuses_nobody_whom_an_instance_could_take():
    pool = Pool("a", policy=Policy(admission=False))
    pool.occupy("a", 100_000)
    assert isinstance(pool.submit("r", 1_000), Start)


@pytest.mark.parametrize(("when_late", "request_class"), [("degrade", "batch"), ("wait", "interactive")])
def test_a_tenant_may_have_late_requests_degraded_or_served_as_well_as_can_be(when_late, request_class):
    pool = Pool("a")
    pool.occupy("a", 45_000)
    tenant = Tenant(tenant="acme", when_late=when_late)
    assert isinstance(pool.submit("r", 1_000, tenant=tenant), Keep)
    assert "r" in pool.admission.queues[request_class]
    pool.wait(12.0)
    assert pool.started == ["r"]


def test_whoever_gave_up_its_objective_lets_those_that_can_meet_theirs_go_first():
    pool = Pool("a")
    pool.occupy("a", 45_000)
    pool.submit("hopeless", 1_000, tenant=Tenant(tenant="acme", when_late="wait"))
    pool.wait(3.0)
    pool.submit("hopeful", 1_000)
    pool.wait(12.0)
    assert pool.started == ["hopeful", "hopeless"]


SPARE = Tenant(tenant="acme", when_late="spare")


def test_a_late_request_is_served_where_few_come_too_late():
    pool = Pool("a", "b")
    pool.occupy("a"), pool.occupy("b")
    assert isinstance(pool.submit("late", 1_000, tenant=SPARE), Keep)
    pool.wait(12.0)
    assert pool.started == ["late"]


def test_where_much_waits_that_is_late_already_one_more_is_refused():
    pool = Pool("a")
    pool.occupy("a", 120_000)
    taken = [pool.submit(f"r{number}", 20_000, tenant=SPARE) for number in range(6)]
    waits = [isinstance(verdict, Keep) for verdict in taken]
    assert waits == sorted(waits, reverse=True) and 1 <= sum(waits) <= 4
    assert refusal(taken[-1]).reason == "predicted_to_miss_objective"
    pool.admission.remove("r0")
    assert isinstance(pool.submit("again", 20_000, tenant=SPARE), Keep)


def test_where_many_came_too_late_lately_one_more_is_refused_though_none_waits():
    pool = Pool("a")
    pool.occupy("a", 120_000)
    for number in range(40):
        pool.submit(f"r{number}", 8_000, tenant=SPARE)
        pool.admission.remove(f"r{number}")
    assert refusal(pool.submit("late", 1_000, tenant=SPARE)).reason == "predicted_to_miss_objective"
    pool.wait(600.0)
    pool.occupy("a", 120_000)
    assert isinstance(pool.submit("much later", 1_000, tenant=SPARE), Keep)


def test_those_served_late_on_purpose_say_nothing_of_margins():
    pool = Pool("a")
    patient = Tenant(tenant="acme", when_late="wait")
    changes = pool.admission.adjust(pool.policy, pool.now_s)
    for round_ in range(6):
        pool.occupy("a")
        for number in range(40):
            assert isinstance(pool.submit(f"late-{round_}-{number}", 1_000, tenant=patient), Keep)
        pool.wait(WINDOW_S)
        changes += pool.admission.adjust(pool.policy, pool.now_s)
    assert len(pool.started) == 240
    assert changes == []


def test_a_line_of_a_batch_that_cannot_be_done_by_its_deadline_is_refused_however_few_they_are():
    pool = Pool("a")
    pool.occupy("a", 120_000)
    refused = refusal(pool.submit("line", 1_000, service_tier="flex", due_ns=1, left_s=5.0, tenant=SPARE))
    assert refused.reason == "predicted_to_miss_objective"


def test_one_that_its_full_queue_refuses_takes_no_room_from_other_late_ones():
    pool = Pool("a", policy=Policy(queue=QueueLimits(requests=1)))
    pool.occupy("a")
    assert isinstance(pool.submit("r0", 8_000, tenant=SPARE), Keep)
    for number in range(1, 15):
        assert refusal(pool.submit(f"r{number}", 8_000, tenant=SPARE)).reason == "queue_full"
    pool.admission.remove("r0")
    assert isinstance(pool.submit("r15", 8_000, tenant=SPARE), Keep)


def test_who_waits_for_kv_room_is_kept_here():
    pool = Pool("a")
    load = pool.load = idle("a")
    pool.admission = type(pool.admission)(load, pool.admission._scheduler._lengths)
    for number in range(22):
        decode(load, f"d{number}", "a", tokens=PROFILE.kv_capacity_tokens // 22, max_output_tokens=9_000)
    assert not isinstance(pool.submit("r", 100_000), Start)
