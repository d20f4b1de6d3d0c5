"""Which settings of a policy or a tenant cannot hold together, though each of them is valid."""

import math
import re
from unittest.mock import MagicMock

import msgspec
import pytest

from tokenfleet import subjects
from tokenfleet.contracts.policy import ClassObjective, ClassShare, Policy, Tenant, problems, tenant_problems
from tokenfleet.live import LivePolicy

FLOORS_ABOVE_ONE = {"interactive": ClassShare(floor=0.7), "batch": ClassShare(floor=0.4)}


def test_the_defaults_have_no_problems():
    assert problems(Policy()) == []
    assert tenant_problems(Tenant(tenant="acme"), Policy()) == []


def test_floors_may_share_out_the_whole_but_not_more():
    tenths = {name: ClassShare(floor=0.1) for name in "abcdefghij"}
    classes = {name: ClassObjective() for name in tenths}
    assert problems(Policy(shares=tenths, objectives=classes)) == []
    (problem,) = problems(Policy(shares=FLOORS_ABOVE_ONE))
    assert "1.1" in problem
    assert "interactive 0.7, batch 0.4" in problem


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (Policy(shares={"batch": ClassShare(floor=0.3, ceiling=0.2)}), r"shares.batch: its ceiling \(0.2\)"),
        (Policy(shares={"bach": ClassShare()}), "there is no class bach. Known: batch, interactive"),
        (Policy(kv_reserve_share=1.0), "kv_reserve_share"),
        (Policy(objectives={"batch": ClassObjective(e2e_s=60, timeout_s=30)}), r"timeout_s \(30\)"),
        (Policy(objectives={"interactive": ClassObjective(ttft_s=9, e2e_s=5)}), r"e2e_s \(5\)"),
    ],
)
def test_what_contradicts_itself_is_named(policy: Policy, complaint: str):
    (problem,) = problems(policy)
    assert re.search(complaint, problem)


def test_a_class_of_ones_own_may_have_a_share_once_it_has_objectives():
    assert (
        problems(Policy(objectives={"bulk": ClassObjective(e2e_s=60)}, shares={"bulk": ClassShare()})) == []
    )


def test_a_tenants_objective_for_a_class_that_nothing_belongs_to_is_a_problem():
    tenant = Tenant(tenant="acme", objectives={"interactiv": ClassObjective(ttft_s=2)})
    (problem,) = tenant_problems(tenant, Policy())
    assert "no class interactiv" in problem


@pytest.mark.parametrize(
    "bad", [msgspec.json.encode(Policy(shares=FLOORS_ABOVE_ONE)), b'{"kv_reserve_share": 2}', b"{"]
)
def test_a_bad_policy_in_the_bucket_is_refused_and_the_last_good_one_stays(
    bad: bytes, monkeypatch: pytest.MonkeyPatch
):
    log = MagicMock()
    monkeypatch.setattr("tokenfleet.live.log", log)
    live = LivePolicy()
    live._changed(subjects.POLICY_KEY, msgspec.json.encode(Policy(long_context_tokens=9_000)))
    live._changed(subjects.POLICY_KEY, bad)
    assert live.current.long_context_tokens == 9_000
    log.error.assert_called_once()
    live._changed(subjects.POLICY_KEY, msgspec.json.encode(Policy(long_context_tokens=8_000)))
    assert live.current.long_context_tokens == 8_000


@pytest.mark.parametrize(
    ("pool", "price", "said"),
    [
        ("llama-70b", 1.0, "a pool is MODEL@VERSION"),
        ("@1", 1.0, "a pool is MODEL@VERSION"),
        ("*", math.inf, "inf is no price"),
        ("llama-70b@1", math.nan, "nan is no price"),
        ("llama-70b@1", -1.0, "-1 is no price"),
    ],
)
def test_a_price_is_finite_and_of_a_pool(pool: str, price: float, said: str):
    (problem,) = problems(Policy(gpu_hour_prices={pool: price}))
    assert pool in problem
    assert said in problem


def test_prices_may_be_zero_and_of_any_pool():
    assert problems(Policy(gpu_hour_prices={"llama-3.1@1.0": 9.8, "*": 0.0})) == []
