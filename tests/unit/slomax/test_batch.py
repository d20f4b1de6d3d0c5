"""Work without haste: who of it goes first, what it leaves to others, and what it may do once it is late."""

import numpy as np
import pytest
from fleets import request, view
from slomax_pool import Pool

from slomax.policy.admission import BATCH_IS_LATE_AT, HOPELESS_S, Margins, Start, hopeless, judge
from slomax.policy.claims import Claims
from slomax.policy.due import REVIEW_S, SPARE_S, DueFirst
from slomax.policy.entry import Entry
from slomax.policy.fair_queue import FairQueue
from slomax.policy.prospects import Prospects
from slomax.policy.room import LONG_BATCH_SHARE
from tokenfleet.contracts.requests import Objective

BATCH = {"task": "batch", "service_tier": "flex", "due_ns": 1}
MARGINS = Margins(wait_share_of_slack=0.8, hold_share_of_slack=0.8, misses_allowed=0.5)


def line(name: str, tenant: str, latest_start_s: float, own_prefill_s: float = 1.0) -> Entry:
    """A batch line that came at 0."""
    return Entry(
        request_id=name,
        attempt=1,
        tenant=tenant,
        weight=1.0,
        request_class="batch",
        class_reason="task",
        request=request(1_000, task="batch"),
        objective=Objective(),
        when_late="refuse",
        arrived_s=0.0,
        expires_s=1e6,
        due_s=latest_start_s + own_prefill_s,
        own_prefill_s=own_prefill_s,
        promised_s=latest_start_s + own_prefill_s,
    )


def queue_of(*lines: Entry) -> FairQueue:
    queue = FairQueue()
    for one in lines:
        queue.add(one)
    return queue


def ahead(misses: float) -> Prospects:
    nothing = np.zeros(1)
    return Prospects((view("a"),), nothing, nothing, np.array([misses]), nothing, nothing)


class TestDue:
    soon = tuple(line(f"soon-{number}", "large", 1_000.0) for number in range(100))
    later = tuple(line(f"later-{number}", "small", 80_000.0) for number in range(100))

    def test_with_time_for_everything_tenants_take_turns(self):
        queue = queue_of(*self.soon, *self.later)
        before_s = DueFirst().before_s(queue, work_per_s=1.0, now_s=0.0)
        tenants = [one.tenant for one in queue.in_order(10, before_s)]
        assert tenants.count("small") == 5

    def test_what_the_time_is_short_for_goes_first_whosoever_it_is(self):
        queue = queue_of(*self.soon, *self.later)
        before_s = DueFirst().before_s(queue, work_per_s=0.2, now_s=0.0)
        order = list(queue.in_order(None, before_s))
        assert [one.tenant for one in order[:100]] == ["large"] * 100
        assert {one.request_id for one in order} == {one.request_id for one in [*self.soon, *self.later]}

    def test_the_last_minute_before_a_deadline_is_nobodys_plan(self):
        queue = queue_of(line("last", "large", SPARE_S - 1.0), *self.later)
        before_s = DueFirst().before_s(queue, work_per_s=100.0, now_s=0.0)
        assert next(queue.in_order(1, before_s)).request_id == "last"

    def test_the_queue_is_gone_through_now_and_then_and_not_at_every_look(self):
        due, queue = DueFirst(), queue_of(*self.soon)
        calm = due.before_s(queue, work_per_s=10.0, now_s=0.0)
        assert due.before_s(queue, work_per_s=0.01, now_s=REVIEW_S / 2) == calm
        assert due.before_s(queue, work_per_s=0.01, now_s=REVIEW_S) > calm


class TestHarm:
    @pytest.mark.parametrize(("waited_s", "starts"), [(0.0, False), (750.0, False), (990.0, True)])
    def test_it_pushes_nobody_over_until_it_is_late(self, waited_s: float, starts: bool):
        patient = line("line", "acme", 1_000.0)
        verdict = judge(patient, ahead(misses=0.3), np.array([True]), MARGINS, waited_s)
        assert isinstance(verdict, Start) == starts

    def test_it_is_given_up_seconds_before_its_deadline_not_at_a_share_of_a_day(self):
        day_s = 86_400.0
        patient = line("line", "acme", day_s)
        assert hopeless(patient, 0.0, day_s - HOPELESS_S - 0.1) is None
        assert hopeless(patient, 0.0, day_s - HOPELESS_S + 0.1) is not None

    def test_once_late_it_has_an_instance_kept_free_however_short_it_is(self):
        claims, patient = Claims(), line("line", "acme", 1_000.0)
        none, one_each, names = np.zeros(3), np.ones(3), ("a", "b", "c")
        three = Prospects(tuple(view(name) for name in names), none, none, one_each, none, none)
        claims.consider(patient, three, 3, 999.0 * BATCH_IS_LATE_AT)
        assert claims.others(line("other", "acme", 1.0)) == ()
        claims.consider(patient, three, 3, 1_001.0 * BATCH_IS_LATE_AT)
        assert claims.others(line("other", "acme", 1.0)) == ("a",)


@pytest.mark.parametrize(("chats", "most"), [(0, 8), (4, LONG_BATCH_SHARE * 8)])
def test_long_lines_leave_instances_to_the_long_prompts_that_may_come_where_any_come(chats: int, most: float):
    pool = Pool(*(f"e{number}" for number in range(8)))
    for number in range(chats):
        pool.submit(f"chat-{number}", 12_000)
    pool.wait(4.0)
    for number in range(8):
        pool.submit(f"long-{number}", 60_000, **BATCH, left_s=86_400.0)
    pool.submit("short", 1_000, **BATCH, left_s=86_400.0)
    pool.wait(0.2)
    assert len([name for name in pool.started if name.startswith("long")]) == most
    assert ("short" in pool.started) == (chats > 0), "a long line that has to wait holds up nobody behind it"
