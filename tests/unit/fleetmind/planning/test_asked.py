"""How much work requests ask for."""

import msgspec
import pytest
from fleets import PROFILE
from unit.fleetmind.worlds import MODEL, TENANT, placer, request

from fleetmind.policy.eligibility import NoPlace
from fleetmind.policy.planning.asked import (
    ANSWERS_TOGETHER,
    FIRST_ANSWER_TOKENS,
    AskedWork,
    permitted_sites,
)
from tokenfleet.contracts.control import GoodputWindow
from tokenfleet.contracts.policy import Fleet, Tenant
from tokenfleet.contracts.requests import RequestSpec, Submitted, event_id

NOW_S = 1_000.0
NO_ROOM = NoPlace(503, "no_ready_instance", "")


def submitted(attempt: int = 1, age_s: float = 0.0, ingress: str = "ingress-1") -> Submitted:
    return Submitted(
        event_id=event_id("r", attempt, "submitted"),
        request_id="r",
        attempt=attempt,
        tenant="t",
        pool=MODEL,
        site="A",
        time_ns=int((NOW_S - age_s) * 1e9),
        request=request(ingress=ingress),
    )


def counted(spec: RequestSpec, work: AskedWork, tenant: Tenant | None = TENANT) -> None:
    view = placer("A", A=[0.0], B=[0.0])
    choice = view.place(spec, "r", tenant, (), Fleet(), 0.0)
    work.asked(spec, tenant, view.sites.of_model(MODEL), choice)


def window(completed: int, output_tokens: int) -> GoodputWindow:
    nothing = dict.fromkeys(("rejected", "timed_out", "cancelled", "failed", "met", "good_tokens"), 0)
    return GoodputWindow(
        time_ns=1,
        site="A",
        pool=f"{MODEL}@v1",
        request_class="interactive",
        window_s=60.0,
        offered=completed,
        completed=completed,
        output_tokens=output_tokens,
        **nothing,
    )


def test_a_request_asks_for_its_prefill_and_a_share_of_the_steps_of_its_answer():
    work = AskedWork()
    counted(request(8_000, max_output_tokens=10_000), work)
    (asked,) = work.take(1.0)
    answer_s = FIRST_ANSWER_TOKENS * PROFILE.base_s / ANSWERS_TOGETHER
    prefill_s = 8_000 * (PROFILE.prefill_s_per_token + 4_000 * PROFILE.attention_s_per_token_pair)
    assert asked.work == pytest.approx(prefill_s + 4 * PROFILE.base_s + answer_s, rel=0.01)
    assert (asked.model, asked.sites) == (MODEL, None)


def test_answers_are_as_long_as_the_ledger_says_and_no_longer_than_the_request_allows():
    short, long, bounded = AskedWork(), AskedWork(), AskedWork()
    short.answered(MODEL, window(10, 100))
    for work in (long, bounded):
        work.answered(MODEL, window(10, 20_000))
    counted(request(max_output_tokens=4_000), short)
    counted(request(max_output_tokens=4_000), long)
    counted(request(max_output_tokens=10), bounded)
    (least,), (most,), (same) = short.take(1.0), long.take(1.0), bounded.take(1.0)
    assert most.work - least.work == pytest.approx(1_990 * PROFILE.base_s / ANSWERS_TOGETHER)
    assert same[0].work == pytest.approx(least.work)


def test_what_is_refused_for_want_of_room_counts_and_what_nobody_could_serve_does_not():
    work = AskedWork()
    work.asked(request(), TENANT, (), NO_ROOM)
    (asked,) = work.take(1.0)
    assert asked.work > 0
    for status in (400, 403, 404):
        work.asked(request(), TENANT, (), NoPlace(status, "", ""))
    assert [one.work for one in work.take(1.0)] == [0.0]


def test_neither_retries_nor_questions_asked_again_count_twice():
    work = AskedWork()
    assert work.first_asked(submitted(), NOW_S)
    assert not work.first_asked(submitted(attempt=2), NOW_S)
    assert not work.first_asked(submitted(age_s=1.0), NOW_S)


def test_an_ingress_whose_clock_is_behind_asks_for_the_first_time_all_the_same():
    work = AskedWork()
    for _ in range(3):
        assert work.first_asked(submitted(age_s=40.0, ingress="late"), NOW_S)
    assert not work.first_asked(submitted(age_s=41.0, ingress="late"), NOW_S)
    assert work.first_asked(submitted(), NOW_S)


def test_what_was_asked_once_is_told_of_as_nothing_in_later_intervals():
    work = AskedWork()
    counted(request(), work)
    (first,) = work.take(60.0)
    (second,) = work.take(60.0)
    assert second == msgspec.structs.replace(first, work=0.0)
    assert first.work > 0


@pytest.mark.parametrize(
    ("spec", "tenant", "sites"),
    [
        (request(), TENANT, None),
        (request(), None, ("A",)),
        (request(), Tenant(tenant="t", sites=("B", "Z")), ("B",)),
        (request(sites=("A",)), TENANT, ("A",)),
        (request(regions=("eu",)), TENANT, ()),
    ],
)
def test_work_that_is_bound_to_sites_is_counted_for_these(
    spec: RequestSpec, tenant: Tenant | None, sites: tuple[str, ...] | None
):
    view = placer("A", A=[0.0], B=[0.0])
    assert permitted_sites(spec, tenant, view.sites.of_model(MODEL)) == sites
