"""Weighted token-fair over tenants, over the users of one, and least slack within."""

from collections import Counter
from itertools import islice

import pytest
from fleets import request
from hypothesis import given
from hypothesis import strategies as st

from slomax.policy.entry import Entry
from slomax.policy.fair_queue import FairQueue
from tokenfleet.contracts.requests import Objective


def entry(
    name: str,
    tenant: str = "acme",
    *,
    tokens: int = 1_000,
    weight: float = 1.0,
    user: str | None = None,
    arrived_s: float = 0.0,
    ttft_s: float = 4.0,
) -> Entry:
    return Entry(
        request_id=name,
        attempt=1,
        tenant=tenant,
        weight=weight,
        request_class="interactive",
        class_reason="default",
        request=request(tokens, fairness_id=user),
        objective=Objective(ttft_s=ttft_s),
        when_late="refuse",
        arrived_s=arrived_s,
        expires_s=60.0,
        promised_s=ttft_s,
    )


def queue_of(*entries: Entry) -> FairQueue:
    queue = FairQueue()
    for one in entries:
        queue.add(one)
    return queue


def serve(queue: FairQueue, count: int) -> list[Entry]:
    """The next ones, taken out and charged."""
    served: list[Entry] = []
    for _ in range(count):
        one = next(queue.in_order())
        queue.remove(one.request_id)
        queue.charge(one, one.tokens, 0)
        served.append(one)
    return served


def test_within_a_tenant_whoever_has_least_time_left_is_next():
    queue = queue_of(entry("loose", ttft_s=9.0), entry("tight", ttft_s=1.0), entry("usual"))
    assert [one.request_id for one in queue.in_order()] == ["tight", "usual", "loose"]


def test_a_flood_of_one_tenant_does_not_come_before_anothers_single_request():
    flood = [entry(f"f{number}", "flood", arrived_s=-1.0) for number in range(50)]
    queue = queue_of(*flood, entry("single", "acme"))
    assert "single" in [one.request_id for one in islice(queue.in_order(), 2)]


def test_shares_follow_weights():
    queue = queue_of(
        *(entry(f"a{number}", "a", weight=3.0) for number in range(40)),
        *(entry(f"b{number}", "b") for number in range(40)),
    )
    counts = Counter(one.tenant for one in serve(queue, 40))
    assert counts["a"] == pytest.approx(30, abs=1)


def test_long_prompts_cost_their_tenant_more_turns():
    queue = queue_of(
        *(entry(f"a{number}", "a", tokens=4_000) for number in range(40)),
        *(entry(f"b{number}", "b", tokens=1_000) for number in range(40)),
    )
    counts = Counter(one.tenant for one in serve(queue, 40))
    assert counts["b"] == pytest.approx(32, abs=1)


def test_answers_are_charged_apart_from_prompts():
    queue = queue_of(*(entry(f"a{n}", "a") for n in range(3)), *(entry(f"b{n}", "b") for n in range(3)))
    (first,) = serve(queue, 1)
    queue.charge(first, 0, 10_000)
    assert all(one.tenant != first.tenant for one in serve(queue, 3))


def test_idleness_earns_no_credit():
    queue = queue_of(*(entry(f"a{number}", "a") for number in range(30)))
    serve(queue, 10)
    for number in range(30):
        queue.add(entry(f"late{number}", "late"))
    counts = Counter(one.tenant for one in serve(queue, 20))
    assert counts["late"] == pytest.approx(10, abs=1)


def test_a_tenants_users_share_what_it_gets():
    queue = queue_of(
        *(entry(f"x{number}", user="x", arrived_s=-1.0) for number in range(20)),
        entry("y", user="y"),
    )
    assert "y" in [one.request_id for one in islice(queue.in_order(), 2)]


def test_who_leaves_the_queue_is_charged_nothing():
    queue = queue_of(entry("a1", "a"), entry("a2", "a"), entry("b1", "b"), entry("b2", "b"))
    before = [one.request_id for one in queue.in_order()]
    queue.add(entry("gone", "a", tokens=100_000, ttft_s=0.1))
    queue.remove("gone")
    assert [one.request_id for one in queue.in_order()] == before
    assert queue.remove("gone") is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 20_000), st.sampled_from(["", "x", "y"])),
        min_size=1,
        max_size=60,
    )
)
def test_everybody_is_served_once_and_no_backlogged_tenant_gets_far_ahead(requests):
    queue = queue_of(
        *(
            entry(f"r{number}", tenant, tokens=tokens, user=user or None)
            for number, (tenant, tokens, user) in enumerate(requests)
        )
    )
    left = Counter(tenant for tenant, _, _ in requests)
    most = max(tokens for _, tokens, _ in requests)
    given_out: Counter[str] = Counter()
    seen: set[str] = set()
    for one in serve(queue, len(requests)):
        assert one.request_id not in seen
        seen.add(one.request_id)
        given_out[one.tenant] += one.tokens
        left[one.tenant] -= 1
        waiting = [given_out[tenant] for tenant, count in left.items() if count]
        if len(waiting) > 1:
            assert max(waiting) - min(waiting) <= 2 * most
    assert len(queue) == 0 and queue.input_tokens == 0
