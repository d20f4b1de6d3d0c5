"""Instances kept free for long prompts, and what is remembered of requests that started."""

import numpy as np
from fleets import request, view
from slomax_pool import Pool

from slomax.policy.admission import Start
from slomax.policy.claims import CLAIM_AT_SHARE, CLAIM_FROM_S, Claims
from slomax.policy.classify import entry_of
from slomax.policy.entry import Entry
from slomax.policy.prospects import Prospects
from tokenfleet.contracts.policy import Policy, Tenant

NAMES = ["a", "b", "c"]
LATE_S = 10.0 * CLAIM_AT_SHARE + 0.1


def waiting(name: str, own_prefill_s: float = CLAIM_FROM_S) -> Entry:
    """A prompt that came at 0 and may wait 10 s in all."""
    entry = entry_of(name, 1, request(80_000), Tenant(tenant="acme"), Policy(), 0.0, 0.0, 60.0)
    entry.own_prefill_s, entry.promised_s = own_prefill_s, own_prefill_s + 10.0
    return entry


def ahead(*misses: float) -> Prospects:
    """What it would meet at a, b and c."""
    nothing = np.zeros(len(NAMES))
    views = tuple(view(name) for name in NAMES)
    return Prospects(views, nothing, nothing, np.array(misses), nothing, nothing)


def test_a_long_prompt_that_runs_out_of_time_keeps_the_instance_free_where_it_would_do_least_harm():
    claims, long, short = Claims(), waiting("long"), waiting("short", 1.0)
    claims.consider(long, ahead(3.0, 1.0, 2.0), 3, LATE_S)
    assert claims.others(short) == ("b",)
    assert claims.free_for(short, NAMES).tolist() == [True, False, True]
    assert claims.others(long) == (), "its own claim is no obstacle to itself"
    claims.release("long")
    assert claims.others(short) == ()


def test_who_has_time_left_or_is_soon_done_claims_nothing():
    claims = Claims()
    claims.consider(waiting("early"), ahead(1.0, 1.0, 1.0), 3, LATE_S / 2)
    claims.consider(waiting("short", CLAIM_FROM_S / 2), ahead(1.0, 1.0, 1.0), 3, LATE_S)
    assert claims.others(waiting("other")) == ()


def test_only_some_instances_may_be_claimed_and_never_the_only_one():
    claims = Claims()
    claims.consider(waiting("first"), ahead(1.0, 2.0, 3.0), 3, LATE_S)
    claims.consider(waiting("second"), ahead(1.0, 2.0, 3.0), 3, LATE_S)
    assert claims.others(waiting("other")) == ("a",)
    alone = Claims()
    alone.consider(waiting("first"), ahead(1.0, np.inf, np.inf), 1, LATE_S)
    assert alone.others(waiting("other")) == ()


def test_requests_whose_end_is_never_reported_are_forgotten():
    pool = Pool("a")
    assert isinstance(pool.submit("r", 1_000), Start)
    assert pool.admission.expire(-1.0) == 0
    assert pool.admission.expire(1.0) == 1
    assert pool.admission.expire(1.0) == 0
