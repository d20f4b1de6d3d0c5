"""A tenant that takes far more than its share while others wait: what it may still start."""

import pytest
from fleets import request
from slomax_pool import Pool

from slomax.policy.classify import entry_of
from slomax.policy.entry import Entry
from slomax.policy.flood import LEAST_IDLE_SHARE, MOST_IDLE_SHARE, Tenants, idle_share_kept
from tokenfleet.contracts.policy import Policy, Tenant


def prompt(tenant: str, own_prefill_s: float = 1.0, *, weight: float = 1.0, task: str | None = None) -> Entry:
    spec = request(1_000, task=task) if task else request(1_000)
    entry = entry_of("r", 1, spec, Tenant(tenant=tenant, weight=weight), Policy(), 0.0, 0.0, 60.0)
    entry.own_prefill_s = own_prefill_s
    return entry


def started(**counts: int) -> Tenants:
    tenants = Tenants()
    for tenant, count in counts.items():
        for _ in range(count):
            tenants.started(prompt(tenant, 2.0), 0.0)
    return tenants


class TestWhoFloods:
    @pytest.mark.parametrize(("prompts", "floods"), [(1, False), (2, False), (6, True), (20, True)])
    def test_of_ten_tenants_one_with_more_than_a_quarter_of_the_work(self, prompts: int, floods: bool):
        others = {f"t{number}": 1 for number in range(9)}
        assert started(flood=prompts, **others).floods(prompt("flood"), 1, 0.0) == floods

    def test_of_two_one_with_more_than_seven_twelfths(self):
        assert not started(a=11, b=9).floods(prompt("a"), 1, 0.0)
        assert started(a=13, b=7).floods(prompt("a"), 1, 0.0)

    def test_not_while_the_pool_has_room_for_all(self):
        tenants = started(a=20, b=1)
        assert tenants.floods(prompt("a"), 2, 0.0)
        assert not tenants.floods(prompt("a"), 4, 0.0), "less than half of four instances' time"

    def test_nobody_alone(self):
        assert not started(only=100).floods(prompt("only"), 1, 0.0)

    def test_a_weight_is_a_share(self):
        tenants = started(b=10)
        for _ in range(20):
            tenants.started(prompt("a", weight=4.0), 0.0)
        assert not tenants.floods(prompt("a", weight=4.0), 1, 0.0)

    def test_not_for_what_was_long_ago(self):
        tenants = started(a=20, b=1)
        tenants.started(prompt("b"), 300.0)
        assert not tenants.floods(prompt("a"), 1, 300.0)
        tenants.forget_idle(600.0)
        assert not tenants.floods(prompt("b"), 1, 600.0)

    def test_not_for_batch_which_makes_way_by_itself(self):
        tenants = started(b=1)
        for _ in range(50):
            tenants.started(prompt("a", task="batch"), 0.0)
        assert not tenants.floods(prompt("a"), 1, 0.0)


def test_the_longer_its_prompt_the_more_instances_stay_idle_beside_it():
    kept = [idle_share_kept(own_s, others_share=0.5) for own_s in (0.1, 0.5, 1.0, 10.0)]
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (LEAST_IDLE_SHARE, MOST_IDLE_SHARE)


def test_beside_tenants_that_send_little_little_is_left_idle():
    assert idle_share_kept(10.0, others_share=0.01) < 1 / 50


def test_it_leaves_instances_idle_for_the_others_and_takes_them_once_nobody_waits():
    engines = [f"e{number}" for number in range(8)]
    pool = Pool(*engines)
    for second in range(60):
        for number in range(10):
            pool.submit(f"flood-{number}-{second}", 12_000, tenant="flood")
        for number in range(2):
            pool.submit(f"small-{number}-{second}", 12_000, tenant=f"small-{number}")
        pool.wait(1.0)
    pool.wait(1.4)
    waiting = set(pool.admission.queues["interactive"].waiting_by_tenant())
    assert waiting == {"flood"}
    idle = sum(pool.load.outstanding(engine) == 0 for engine in engines)
    assert idle >= 1, "the others took a third of the time lately: somewhere one of theirs begins at once"
    verdict = pool.submit("another", 4_000, tenant="small-1")
    assert "another" in pool.started, verdict
