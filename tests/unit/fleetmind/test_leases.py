"""Capacity granted across sites: nobody spends what another has, and what is not spent comes back by time."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.fleetmind.worlds import capacity, summary

from fleetmind.policy.backoff import FIRST_LIMIT_S
from fleetmind.policy.granting import Granter
from fleetmind.policy.leases import (
    CLOCK_RATE,
    GIVEN_BACK_S,
    IN_TRANSIT_S,
    SETTLED_S,
    VALID_S,
    LeaseBook,
    Wallet,
    headroom_s,
)
from fleetmind.policy.sites import SiteView
from tokenfleet.contracts.policy import Fleet
from tokenfleet.contracts.sites import Lease, LeaseAsk, LeaseGrant

POOL = "m@1"
RUN_IN_S = VALID_S / CLOCK_RATE + IN_TRANSIT_S


def granted(sequence: int, lease_id: str, work_s: float, limit_s: float = 8.0) -> LeaseGrant:
    return LeaseGrant(
        holder="h",
        site="B",
        pool=POOL,
        sequence=sequence,
        lease_id=lease_id,
        work_s=work_s,
        valid_s=VALID_S,
        limit_s=limit_s,
    )


def test_two_holders_get_parts_of_the_headroom_by_what_they_want():
    book = LeaseBook(-100.0)
    assert (book.grant("a", 9.0, 10.0, 0.0) or ("", 0.0))[1] == 10.0  # alone it may have all
    book = LeaseBook(-100.0)
    book.grant("a", 0.0, 0.0, 0.0)
    book.grant("b", 0.0, 0.0, 0.0)
    first, second = book.grant("a", 6.0, 10.0, 0.1), book.grant("b", 0.0, 10.0, 0.1)
    assert first and second and first[1] > second[1] > 0 and first[1] + second[1] <= 10.0


def test_a_grant_is_answered_from_a_pools_summary_and_can_be_sent():
    view = SiteView()
    view.apply(capacity("B"), 0.0)
    view.summarised(summary("B", [1.0]), 0.0)
    pool = view.get("B", "llama-70b@v1")
    assert pool is not None
    ask = LeaseAsk(holder="a", site="A", pool=pool.name, sequence=3, wanted_s=1.0)
    grant = Granter(-100.0).answer(ask, pool, view, Fleet(), 0.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(grant), type=LeaseGrant) == grant
    assert (grant.sequence, grant.work_s) == (3, pytest.approx(0.9 * FIRST_LIMIT_S - 1.0))


def test_a_site_that_crashed_holding_leases_gives_them_back_by_time():
    book = LeaseBook(-100.0)
    book.grant("crashed", 1.0, 10.0, 0.0)
    assert book.committed_s(0.1) == 10.0
    assert book.committed_s(RUN_IN_S + 0.1) == 0.0


def test_a_new_book_grants_nothing_until_the_leases_of_the_one_before_are_over():
    book = LeaseBook(0.0)
    assert book.grant("a", 1.0, 10.0, RUN_IN_S - 0.1) is None
    lease_id, work_s = book.grant("a", 1.0, 10.0, RUN_IN_S) or ("", 0.0)
    assert work_s == 10.0
    before, _ = LeaseBook(-100.0).grant("a", 1.0, 10.0, 0.0) or ("", 0.0)
    assert before != lease_id  # nor does what is said of those count here


def test_a_holder_counts_from_when_it_asked_and_stops_before_the_book_takes_the_rest_back():
    wallet = Wallet()
    sequence = wallet.ask("B", POOL, 0.0)
    assert wallet.receive(granted(sequence, "l", 5.0), 1.0) == 1.0
    assert wallet.has("B", POOL, 1.0, VALID_S - 0.01)
    assert not wallet.has("B", POOL, 1.0, VALID_S)
    late = wallet.ask("B", POOL, 10.0)
    wallet.receive(granted(late, "late", 5.0), 10.0 + VALID_S)
    assert not wallet.has("B", POOL, 1.0, 10.0 + VALID_S)


def test_a_grant_that_arrives_twice_or_answers_nothing_is_worth_nothing():
    wallet = Wallet()
    sequence = wallet.ask("B", POOL, 0.0)
    wallet.receive(granted(sequence, "l", 1.0), 0.1)
    assert wallet.receive(granted(sequence, "l", 1.0), 0.2) is None
    assert wallet.receive(granted(99, "x", 1.0), 0.2) is None
    assert wallet.spend("B", POOL, 1.0, 0.3) and not wallet.spend("B", POOL, 1.0, 0.3)


def test_a_long_prompt_takes_at_most_what_one_instance_may_have():
    wallet = Wallet()
    wallet.receive(granted(wallet.ask("B", POOL, 0.0), "l", 3.0, limit_s=2.0), 0.0)
    assert sum(lease.work_s for lease in wallet.spend("B", POOL, 20.0, 0.1)) == 2.0


def test_what_a_holder_does_not_need_goes_back_with_its_next_ask_and_to_others_at_once():
    book, wallet = LeaseBook(-100.0), Wallet()
    lease_id, work_s = book.grant("a", 1.0, 4.0, 0.0) or ("", 0.0)
    wallet.receive(granted(wallet.ask("B", POOL, 0.0), lease_id, work_s), 0.0)
    (spent,) = wallet.spend("B", POOL, 1.0, 0.5)
    assert wallet.give_back("B", POOL, GIVEN_BACK_S - 0.1) == ()
    (back,) = wallet.give_back("B", POOL, GIVEN_BACK_S)
    assert not wallet.has("B", POOL, 0.1, GIVEN_BACK_S)
    for _ in range(2):  # said twice, it counts once
        book.returned(back)
        assert book.committed_s(GIVEN_BACK_S) == 1.0
    assert book.spent(spent, GIVEN_BACK_S)  # what was under way is still its own


def test_what_arrived_is_committed_until_summaries_tell_of_it():
    book = LeaseBook(-100.0)
    lease_id, work_s = book.grant("a", 1.0, 4.0, 0.0) or ("", 0.0)
    assert book.spent(Lease(lease_id=lease_id, work_s=work_s), 0.5)
    assert book.committed_s(0.6) == 4.0
    assert book.committed_s(0.5 + SETTLED_S) == 0.0
    assert not book.spent(Lease(lease_id=lease_id, work_s=1.0), 0.7)  # used up


def test_headroom_is_what_is_free_below_the_limit_without_the_reserve():
    assert headroom_s([0.0, 1.0, 9.0], 2.0, 0.0) == 3.0
    assert headroom_s([0.0, 1.0, 9.0], 2.0, 0.25) == pytest.approx(1.5)
    assert headroom_s([2.0], 2.0, 0.1) == 0.0


actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["ask", "spend", "deliver", "lose", "restart", "crash", "arrive", "give back", "taken back"]
        ),
        st.integers(0, 2),
        st.floats(0.05, 6.0),
        st.floats(0.0, 1.5),
    ),
    max_size=60,
)


@given(actions=actions, headroom=st.floats(0.5, 20), offset=st.floats(-1e6, 1e6), rate=st.floats(0.985, 1.0))
def test_however_messages_are_delayed_lost_or_repeated_nobody_spends_what_another_may(
    actions, headroom, offset, rate
):
    """Three holders whose clocks are off and slow, one site; what can be spent or was sent never exceeds the headroom."""
    book, now_s = LeaseBook(-100.0), 0.0
    wallets = [Wallet() for _ in range(3)]
    grants: list[tuple[int, LeaseGrant]] = []
    sent: list[tuple[float, float, Lease]] = []
    returned: list[Lease] = []

    def clock(at_s: float) -> float:
        return offset + rate * at_s

    for what, who, amount, passed in actions:
        now_s += passed
        wallet = wallets[who]
        # Work that arrived is in the site's backlog by then: its headroom is less by that, until it is done.
        sent = [one for one in sent if now_s - one[0] < IN_TRANSIT_S + SETTLED_S]
        if what == "ask":
            sequence = wallet.ask("B", POOL, clock(now_s))
            got = book.grant(str(who), amount, headroom, now_s)
            if got:
                grants.append((who, granted(sequence, *got, limit_s=100.0)))
        elif what == "deliver" and grants:
            to, grant = grants.pop(0)
            wallets[to].receive(grant, clock(now_s))
        elif what == "lose" and grants:
            grants.pop()
        elif what == "spend":
            for lease in wallet.spend("B", POOL, amount, clock(now_s)):
                sent.append((now_s, now_s, lease))
        elif what == "arrive" and sent:
            sent_s, _, lease = sent.pop(0)
            if now_s - sent_s < IN_TRANSIT_S:
                assert book.spent(lease, now_s), "what a holder spent in time was its own"
        elif what == "give back":
            returned += wallet.give_back("B", POOL, clock(now_s))
        elif what == "taken back" and returned:
            book.returned(returned[0])
            if amount > 3.0:  # else it arrives again
                returned.pop(0)
        elif what == "crash":
            wallets[who] = Wallet()
        elif what == "restart":
            book, now_s = LeaseBook(now_s), now_s
        spendable = sum(one.left_s for each in wallets for one in each._valid("B", POOL, clock(now_s)))
        under_way = sum(lease.work_s for at_s, _, lease in sent if now_s - at_s < IN_TRANSIT_S)
        if book.started_s < 0:
            assert spendable + under_way <= book.committed_s(now_s) + 1e-6
        assert book.committed_s(now_s) <= headroom + sum(work for _, work in book._arrived) + 1e-6
