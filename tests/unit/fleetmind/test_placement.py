"""Which site, and why: stay unless another is better by more than a margin, and may be used."""

from collections import Counter

import pytest
from unit.fleetmind.worlds import MODEL, TENANT, capacity, granted, know, placer, request, summary

from fleetmind.policy.eligibility import NoPlace
from fleetmind.policy.placement import Placement, Placer
from tokenfleet.contracts.policy import Fleet
from tokenfleet.contracts.requests import RequestSpec

FLEET = Fleet()


def placed(view: Placer, spec: RequestSpec, name: str = "r1", now_s: float = 0.1, **more) -> Placement:
    choice = view.place(spec, name, TENANT, more.pop("blocks", ()), more.pop("fleet", FLEET), now_s, **more)
    assert isinstance(choice, Placement), choice
    return choice


def test_it_stays_where_it_entered_while_others_are_no_better():
    assert placed(placer(A=[0.0], B=[0.0]), request()).reason == "local"


def test_it_goes_where_it_is_served_sooner_by_more_than_the_margin_and_the_way():
    assert placed(placer(A=[2.0], B=[0.0]), request()).site == "B"
    # 0.06 s of way and 0.2 s of margin.
    assert placed(placer(A=[0.24], B=[0.0]), request()).site == "A"
    eager = Fleet(stay_local_margin_s=0.0)
    assert placed(placer(A=[0.24], B=[0.0]), request(), fleet=eager).site == "B"


def test_a_diverted_request_carries_its_lease_and_one_that_stays_does_not():
    away = placed(placer(A=[5.0], B=[0.0]), request())
    assert away.leases and sum(lease.work_s for lease in away.leases) == pytest.approx(away.work_s)
    assert placed(placer(A=[0.0], B=[0.0]), request()).leases == ()


def test_without_granted_capacity_it_stays():
    view = Placer("A")
    know(view, "A", [5.0])
    view.sites.apply(capacity("B"), 0.0)
    view.sites.summarised(summary("B", [0.0]), 0.0)
    assert placed(view, request()).reason == "no_headroom_elsewhere"
    assert view.wanted("B", f"{MODEL}@v1") > 0  # which is what it asks for next


def test_an_entry_without_instances_sends_to_the_best_site_even_without_a_grant():
    view = Placer("A")
    for site, backlog_s in (("B", 3.0), ("C", 0.0)):
        view.sites.apply(capacity(site), 0.0)
        view.sites.summarised(summary(site, [backlog_s]), 0.0)
    choice = placed(view, request())
    assert (choice.site, choice.reason) == ("C", "not_granted")


def test_own_placements_count_until_the_next_summary():
    view = placer(A=[0.0])
    know(view, "B", [0.0])
    sites = Counter(placed(view, request(16_000), f"r{number}").site for number in range(8))
    assert sites == {"A": 4, "B": 4}
    view.sites.summarised(summary("A", [0.0]), 0.2)
    assert placed(view, request(16_000), "later", 0.2).site == "A"


def test_a_backlog_is_worked_off_while_nothing_is_heard():
    view = placer(A=[1.0], B=[0.0])
    assert placed(view, request(), now_s=0.0).site == "B"
    assert placed(view, request(), "r2", now_s=0.95).site == "A"


def test_what_waits_in_the_sites_queues_counts_too():
    view = placer(A=[3.0], B=[0.0])
    view.sites.summarised(summary("B", [0.0], waiting_s=6.0), 0.0)
    assert placed(view, request()).site == "A"


def test_many_entries_with_the_same_summaries_do_not_all_pick_the_same_site():
    chosen = Counter(
        placed(placer(A=[9.0], B=[0.0], C=[0.03], D=[0.06]), request(), f"r{number}").site
        for number in range(300)
    )
    assert min(chosen[site] for site in "BCD") > 60


def test_asking_again_gives_the_same_answer():
    answers = {placed(placer(A=[9.0], B=[0.0], C=[0.0]), request(), "same").site for _ in range(5)}
    assert len(answers) == 1


def test_a_conversation_stays_with_its_prefix_unless_the_gain_is_real():
    blocks = tuple(range(32, 32 + 1_000))
    spec = request(16_000)

    def view(backlog_s: float) -> Placer:
        entry = placer(A=[backlog_s], B=[0.0])
        entry.sites.summarised(summary("A", [backlog_s], cached=[[b for b in blocks if b % 32 == 0]]), 0.0)
        return entry

    assert placed(view(1.0), spec, blocks=blocks).site == "A"
    assert placed(view(1.0), spec).site == "B"  # without the prefix it would go
    assert placed(view(4.0), spec, blocks=blocks).site == "B"


def test_a_site_that_refuses_gets_less_at_once_and_more_again_slowly():
    view = placer(A=[9.0], B=[0.0])
    for bad_s in (1.0, 2.0, 3.0, 4.0):
        view.backoffs["B", f"{MODEL}@v1"].bad(bad_s)

    def diverted(now_s: float) -> int:
        know(view, "A", [9.0], now_s)
        count = 0
        for number in range(200):
            know(view, "B", [0.0], now_s)
            count += placed(view, request(), f"r{number}", now_s).site == "B"
        return count

    assert diverted(4.1) < 40
    assert 60 < diverted(14.0) < 160
    assert diverted(40.0) == 200


def test_a_site_that_did_not_answer_is_avoided():
    view = placer(A=[9.0], B=[0.0], C=[1.0])
    assert placed(view, request()).site == "B"
    assert placed(view, request(), avoid=("B",)).site == "C"
    alone = placer(B=[0.0])
    assert placed(alone, request(), avoid=("B",)).site == "B"


def test_price_and_transfer_are_part_of_the_cost():
    view = placer(A=[1.0], B=[0.0])
    assert placed(view, request(16_000)).site == "B"
    dear = Fleet(prices={"B": 2.0})
    assert placed(placer(A=[1.0], B=[0.0]), request(16_000), fleet=dear).site == "A"
    narrow = Fleet(bandwidth_mbps={"A-B": 0.5})
    assert placed(placer(A=[1.0], B=[0.0]), request(16_000), fleet=narrow).site == "A"
    far = Fleet(round_trips_ms={"B-A": 900})
    assert placed(placer(A=[1.0], B=[0.0]), request(16_000), fleet=far).site == "A"


def test_without_a_fresh_load_it_stays_or_is_shared_out_by_ready_instances():
    view = placer(A=[9.0], B=[0.0])
    assert placed(view, request(), now_s=8.0).reason == "local"
    entry = Placer("A")
    for site, ready in (("B", 3), ("C", 1)):
        entry.sites.apply(capacity(site, ready=ready, instances=ready), 0.0)
    sites = Counter(placed(entry, request(), f"r{number}").site for number in range(400))
    assert 240 < sites["B"] < 360


def test_an_instance_that_is_only_doubted_is_left_to_its_sites_own_deciders():
    view = Placer("A")
    view.sites.apply(capacity("A", ready=0, liveness="suspect"), 0.0)
    assert placed(view, request()) == Placement("A", f"{MODEL}@v1", "local_doubted")


def test_a_summary_that_cannot_be_read_is_refused():
    view = placer(A=[0.0])
    with pytest.raises(ValueError, match="bytes"):
        view.sites.summarised(
            type(summary("A", [0.0]))(site="A", pool=f"{MODEL}@v1", time_ns=1, loads=b"123"), 0.0
        )


def test_a_pool_that_lost_its_last_instance_is_gone():
    view = placer(A=[0.0])
    view.sites.apply(capacity("A", ready=0, instances=0), 1.0)
    choice = view.place(request(), "r1", TENANT, (), FLEET, 1.0)
    assert isinstance(choice, NoPlace) and choice.status == 404


def test_leases_of_several_grants_add_up_for_one_request():
    view = placer(A=[9.0])
    view.sites.apply(capacity("B"), 0.0)
    view.sites.summarised(summary("B", [0.0]), 0.0)
    for _ in range(3):
        granted(view, "B", work_s=0.5)
    choice = placed(view, request(16_000))
    assert choice.site == "B" and len(choice.leases) == 3
