"""What users of other routers report of queues and admission, turned into what TokenFleet does instead.

Rows are those of docs/peers-complaints.md.
"""

from typing import Any

import pytest
from fleets import request
from slomax_pool import Pool

from slomax.policy.admission import Keep, Refuse, Start
from slomax.policy.classify import entry_of
from tokenfleet.contracts.policy import ClassShare, Policy, QueueLimits, Tenant, Tier
from tokenfleet.contracts.requests import Objective

LONG = 12_000
"""Tokens of a prompt that an engine computes for about a second; still of the interactive class."""
BATCH: dict[str, Any] = {"task": "batch", "service_tier": "flex"}


def waiting(*engines: str, policy: Policy | None = None) -> Pool:
    """A pool whose engines are all busy for seconds, so that what arrives waits."""
    pool = Pool(*(engines or ("a",)), policy=policy)
    for name in engines or ("a",):
        pool.occupy(name)
    return pool


class TestDeadlinesDecideTheOrder:
    """Row 6 (llm-d-router #1181, inference-sim #1323, #1332): deadlines of 0 made earliest-deadline-first first-come."""

    @pytest.mark.parametrize(
        ("first_s", "second_s", "order"),
        [
            (60.0, 20.0, ["second", "first"]),
            (20.0, 60.0, ["first", "second"]),
            (30.0, 30.0, ["first", "second"]),
        ],
    )
    def test_the_request_with_less_time_left_starts_first_whichever_came_first(
        self, first_s: float, second_s: float, order: list[str]
    ):
        pool = waiting()
        pool.submit("first", objective=Objective(ttft_s=first_s))
        pool.wait(0.5)
        pool.submit("second", objective=Objective(ttft_s=second_s))
        pool.wait(10.0)
        assert pool.started == order

    def test_a_batch_that_is_due_sooner_goes_before_one_that_came_earlier(self):
        pool = waiting()
        pool.submit("tomorrow", **BATCH, due_ns=1, left_s=86_400.0)
        pool.submit("in an hour", **BATCH, due_ns=1, left_s=3_600.0)
        pool.wait(10.0)
        assert pool.started == ["in an hour", "tomorrow"]

    def test_each_request_leaves_the_queue_at_its_own_time_limit(self):
        pool = waiting()
        patient = Objective(ttft_s=100.0)
        pool.submit("brief", objective=patient, queue_ttl_s=0.5)
        pool.submit("patient", objective=patient)
        pool.wait(1.0)
        assert pool.refused["brief"].reason == "queue_ttl"
        assert pool.position("patient") == 0


class TestTheSameCauseHasTheSameCode:
    """Row 7 (llm-d-router #2097, #2162, #2047 and others): 500 instead of 429 or 503, the reason lost."""

    def test_an_objective_that_cannot_be_met_is_the_same_429_on_arrival_and_after_a_wait(self):
        pool = waiting()
        for _ in range(3):
            pool.occupy("a")
        on_arrival = pool.submit("hopeless")
        queued = Pool("a")
        queued.occupy("a", 15_000)
        assert isinstance(queued.submit("hopeful"), Keep)
        for _ in range(3):
            queued.occupy("a")  # what nobody could foresee
        queued.wait(5.0)
        after_a_wait = queued.refused["hopeful"]
        assert isinstance(on_arrival, Refuse)
        assert (on_arrival.status, on_arrival.reason) == (after_a_wait.status, after_a_wait.reason)
        assert (on_arrival.status, on_arrival.reason) == (429, "predicted_to_miss_objective")
        assert (on_arrival.retry_after_s or 0) >= 1
        assert (after_a_wait.retry_after_s or 0) >= 1

    def test_nothing_ready_is_a_503_and_a_prompt_no_instance_can_hold_a_400(self):
        pool = Pool("a")
        too_long = pool.submit("too long", 10_000_000)
        pool.instances = []
        nowhere = pool.submit("nowhere")
        assert isinstance(too_long, Refuse)
        assert isinstance(nowhere, Refuse)
        assert (too_long.status, nowhere.status) == (400, 503)
        assert nowhere.retry_after_s

    def test_a_batch_line_whose_deadline_passes_in_the_queue_is_a_504(self):
        pool = waiting()
        pool.occupy("a")
        waits = Tenant(tenant="acme", when_late="wait")
        pool.submit("line", tenant=waits, **BATCH, due_ns=1, left_s=2.0)
        pool.wait(3.0)
        assert pool.refused["line"].status == 504
        assert pool.refused["line"].reason == "deadline"


class TestNobodyBecomesMoreThanItIs:
    """Row 9 (llm-d-async #380, aisix #766): tenant, priority and fairness id were whatever a header said."""

    def test_a_tenant_that_claims_to_be_many_users_is_served_no_more_than_one_that_is_one(self):
        pool = waiting()
        for number in range(20):
            pool.submit(
                f"many-{number}",
                tenant="many",
                fairness_id=f"user-{number}",
                objective=Objective(ttft_s=300.0),
            )
            pool.submit(f"one-{number}", tenant="one", objective=Objective(ttft_s=300.0))
        pool.wait(9.0)
        many = sum(name.startswith("many") for name in pool.started)
        assert len(pool.started) >= 10
        assert abs(2 * many - len(pool.started)) <= 2

    @pytest.mark.parametrize(("tier", "promised_s"), [("priority", 0.5), ("default", 4.0), ("flex", 4.0)])
    def test_only_a_tenant_of_tier_priority_may_tighten_an_objective(self, tier: Tier, promised_s: float):
        assert ttft_promised(Tenant(tenant="acme", tier=tier), asked_s=0.5) == promised_s

    @pytest.mark.parametrize("tier", ["priority", "default", "flex"])
    def test_everybody_may_ask_for_more_time(self, tier: Tier):
        assert ttft_promised(Tenant(tenant="acme", tier=tier), asked_s=9.0) == 9.0


def ttft_promised(tenant: Tenant, asked_s: float) -> float | None:
    spec = request(objective=Objective(ttft_s=asked_s))
    return entry_of("one", 1, spec, tenant, Policy(), 0.0, 0.0, 600.0).objective.ttft_s


class TestACancelledRequestIsGone:
    """Row 14 (production-stack #634, #867, #1040): a client's leaving did not cancel its request."""

    def test_it_leaves_the_queue_at_once_and_those_behind_it_move_up(self):
        pool = waiting()
        for name in ("one", "two", "three"):
            pool.submit(name, objective=Objective(ttft_s=300.0))
            pool.wait(0.05)
        assert pool.position("three") == 2
        assert pool.admission.remove("one") is not None
        assert pool.admission.place_of("one", 1) is None
        assert pool.position("three") == 1
        pool.wait(10.0)
        assert pool.started == ["two", "three"]

    def test_its_tenant_is_charged_nothing(self):
        pool = waiting()
        patient = Objective(ttft_s=300.0)
        for number in range(50):
            pool.submit(f"gone-{number}", LONG, tenant="left", objective=patient)
        pool.submit("other", tenant="other", objective=patient)
        for number in range(50):
            pool.admission.remove(f"gone-{number}")
        pool.submit("back", tenant="left", objective=patient)
        assert pool.position("back") <= 1
        assert pool.position("other") <= 1

    def test_a_second_removal_and_an_end_of_what_never_ran_change_nothing(self):
        pool = waiting()
        pool.submit("one", objective=Objective(ttft_s=300.0))
        pool.admission.remove("one")
        assert pool.admission.remove("one") is None
        pool.admission.ended("one", pool.now_s, completed=False, output_tokens=0)
        assert len(pool.admission) == 0


class TestNobodyStarvesInTheQueue:
    """Row 25 (llm-d-router #1934, #1119, #1995, GIE #1797): sheddable work was not shed, low bands starved."""

    def test_a_tenants_flood_does_not_raise_anothers_wait(self):
        def start_of_calm(flood: int) -> float:
            pool = waiting()
            for number in range(flood):
                pool.submit(f"flood-{number}", 2_000, tenant="flood", objective=Objective(ttft_s=500.0))
            pool.submit("calm", 2_000, tenant="calm", objective=Objective(ttft_s=500.0))
            while "calm" not in pool.started:
                pool.wait(0.05)
            return pool.now_s

        assert start_of_calm(flood=100) <= start_of_calm(flood=1) + 0.3

    def test_tenants_are_served_tokens_in_proportion_to_their_weights(self):
        pool = waiting()
        for number in range(60):
            for name, weight in (("double", 2.0), ("single", 1.0)):
                tenant = Tenant(tenant=name, weight=weight)
                pool.submit(f"{name}-{number}", 2_000, tenant=tenant, objective=Objective(ttft_s=500.0))
        pool.wait(12.0)
        double = sum(name.startswith("double") for name in pool.started)
        assert len(pool.started) >= 15
        assert double / len(pool.started) == pytest.approx(2 / 3, abs=0.1)

    def test_batch_keeps_its_floor_while_interactive_work_never_ends(self):
        policy = Policy(shares={"interactive": ClassShare(floor=0.5), "batch": ClassShare(floor=0.2)})
        pool = waiting(policy=policy)
        for number in range(120):
            pool.submit(f"now-{number}", 2_000, objective=Objective(ttft_s=500.0))
            pool.submit(f"line-{number}", 2_000, **BATCH, due_ns=1, left_s=86_400.0)
        pool.wait(18.0)
        lines = sum(name.startswith("line") for name in pool.started) / len(pool.started)
        assert lines == pytest.approx(0.2, abs=0.06)

    def test_work_that_cannot_be_served_in_time_is_shed_at_once(self):
        pool = waiting()
        decisions = [pool.submit(f"r{number}", 8_000) for number in range(40)]
        assert sum(isinstance(each, Refuse) for each in decisions) > 20
        assert not isinstance(decisions[-1], Start)


class TestTheQueueIsBounded:
    """Row 27 (production-stack #855, #876, #626, vllm #13395, #2901, #49445): a bounded queue was asked for."""

    def test_by_count_by_tokens_and_by_time_with_a_time_to_come_back(self):
        limits = QueueLimits(requests=2, input_tokens=5_000, wait_s=2.0)
        patient = Objective(ttft_s=300.0)
        pool = waiting(policy=Policy(queue=limits))
        pool.occupy("a")
        assert isinstance(pool.submit("one", objective=patient), Keep)
        assert isinstance(pool.submit("two", objective=patient), Keep)
        third = pool.submit("three", objective=patient)
        large = waiting(policy=Policy(queue=limits)).submit("large", 6_000, objective=patient)
        pool.wait(3.0)
        for refusal, reason in (
            (third, "queue_full"),
            (large, "queue_full"),
            (pool.refused["one"], "queue_ttl"),
        ):
            assert isinstance(refusal, Refuse)
            assert (refusal.status, refusal.reason) == (429, reason)
            assert refusal.retry_after_s is not None
            assert refusal.retry_after_s >= 1.0
        assert len(pool.admission) == 0

    def test_each_class_has_its_own_bound_so_that_batch_fills_nobody_elses_queue(self):
        pool = waiting(policy=Policy(queue=QueueLimits(requests=2)))
        for number in range(5):
            pool.submit(f"line-{number}", **BATCH, due_ns=1, left_s=86_400.0)
        assert isinstance(pool.submit("now", objective=Objective(ttft_s=300.0)), Keep)

    def test_position_and_expected_start_are_known_and_come_nearer(self):
        pool = waiting()
        for number in range(4):
            pool.submit(f"r{number}", 4_000, objective=Objective(ttft_s=300.0))
            pool.wait(0.05)
        places = [pool.admission.place_of(f"r{number}", 1) for number in range(4)]
        assert [place.position for place in places if place] == [0, 1, 2, 3]
        starts = [place.expected_start_s for place in places if place]
        assert starts == sorted(starts)
        assert starts[-1] > starts[0]
        while "r0" not in pool.started:
            pool.wait(0.05)
        assert pool.position("r3") == 2
