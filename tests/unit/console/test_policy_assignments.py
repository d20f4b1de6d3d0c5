"""`KEY=VALUE` for policies and tenants: what is accepted, that a mistake changes nothing, and what is said of it."""

import pytest

from console.assignments import assign, complete, differences, reset, settings_of
from console.operator import apply, changed_tenant
from tokenfleet.contracts.policy import ClassObjective, ClassShare, Policy, Tenant
from tokenfleet.errors import PolicyError


def test_values_are_json_or_words():
    changed = apply(Policy(), ["routing=round_robin", "admission=false", "long_context_tokens=9000"])
    assert (changed.routing, changed.admission, changed.long_context_tokens) == ("round_robin", False, 9000)


def test_nested_keys_change_one_term_and_keep_the_others():
    changed = apply(Policy(), ["objectives.interactive.ttft_s=2"])
    assert changed.objectives["interactive"].ttft_s == 2
    assert changed.objectives["interactive"].tpot_s == Policy().objectives["interactive"].tpot_s
    assert changed.objectives["batch"] == Policy().objectives["batch"]


def test_every_knob_can_be_reached_by_its_dotted_key():
    changed = apply(
        Policy(),
        ["shares.batch.floor=0.05", "objectives.interactive.percentile=0.99", "queue.requests=1000"],
    )
    assert changed.shares["batch"] == ClassShare(floor=0.05)
    assert changed.shares["interactive"] == Policy().shares["interactive"]
    assert changed.objectives["interactive"].percentile == 0.99
    assert changed.queue.requests == 1000
    assert changed.queue.wait_s == Policy().queue.wait_s


def test_null_lifts_a_term_and_a_new_class_can_be_added():
    changed = apply(Policy(), ["objectives.batch.e2e_s=null", "objectives.bulk.e2e_s=60"])
    assert changed.objectives["batch"].e2e_s is None
    assert changed.objectives["bulk"].e2e_s == 60
    assert apply(changed, ["objectives.bulk=null"]) == apply(Policy(), ["objectives.batch.e2e_s=null"])


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("routing", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("routing=dice", "routing"),
        ("wait_share_of_slack=1.5", "wait_share_of_slack"),
        ("speed=3", "no setting named speed"),
        ("objectives.interactive.ttft=2", "no setting named objectives.interactive.ttft"),
        ("objectives.interactive.ttft_s=-1", "ttft_s"),
        ("objectives.interactive=fast", "interactive"),
        ("objectives=7", "objectives"),
        ("routing.speed=1", "single value"),
        ("shares.interactive.floor=0.9", "add up to 1.12"),
        ("shares.batch.ceiling=0.01", "ceiling"),
    ],
)
def test_a_wrong_assignment_is_refused_and_named(assignment: str, complaint: str):
    with pytest.raises(PolicyError, match=complaint):
        apply(Policy(), [assignment])


@pytest.mark.parametrize(
    ("assignment", "nearest"),
    [
        ("shares.batch.flor=0.1", "shares.batch.floor"),
        ("objectives.interactive.ttft=2", "objectives.interactive.ttft_s"),
        ("kv_reserve=0.1", "kv_reserve_share"),
        ("wait_s=30", "queue.wait_s"),
        ("queue.floor=1", "shares.batch.floor"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_known_ones(assignment: str, nearest: str):
    with pytest.raises(
        PolicyError, match=rf"no setting named {assignment.split('=')[0]}\. Nearest: .*{nearest}"
    ):
        apply(Policy(), [assignment])


def test_settings_that_only_together_are_valid_may_be_set_together():
    changed = apply(Policy(), ["shares.interactive.floor=0.1", "shares.batch.floor=0.7"])
    assert changed == apply(Policy(), ["shares.batch.floor=0.7", "shares.interactive.floor=0.1"])
    assert (changed.shares["interactive"].floor, changed.shares["batch"].floor) == (0.1, 0.7)


def test_reset_puts_single_settings_and_groups_back_and_takes_out_what_the_defaults_do_not_have():
    changed = apply(
        Policy(),
        [
            "objectives.bulk.e2e_s=60",
            "objectives.batch.ttft_s=9",
            "shares.batch.floor=0.1",
            "routing=round_robin",
        ],
    )
    assert (
        reset(changed, Policy(), ["objectives.bulk", "objectives.batch.ttft_s", "shares", "routing"])
        == Policy()
    )
    assert reset(changed, Policy(), ["objectives.bulk.e2e_s"]).objectives["bulk"] == ClassObjective()
    with pytest.raises(PolicyError, match=r"no setting named routin\. Nearest: routing"):
        reset(changed, Policy(), ["routin"])


def test_a_difference_is_a_setting_with_both_of_its_values():
    changed = apply(Policy(), ["shares.batch.floor=0.05", "objectives.bulk.e2e_s=60"])
    found = differences(Policy(), changed)
    assert found["shares.batch.floor"] == (0.02, 0.05)
    assert found["objectives.bulk.e2e_s"] == (None, 60.0)
    assert found.keys() - {"shares.batch.floor"} == {
        f"objectives.bulk.{each}"
        for each in ClassObjective.__struct_fields__
        if getattr(ClassObjective(), each)
    } | {"objectives.bulk.e2e_s"}


def test_everything_is_shown_also_what_is_as_by_default():
    assert complete(Policy())["queue"] == {"requests": 5_000, "input_tokens": 100_000_000, "wait_s": 60.0}
    assert complete(Policy())["objectives"]["batch"]["percentile"] == 0.95


def test_a_tenant_is_set_by_the_same_keys_and_checked_against_the_policy():
    changed = changed_tenant(
        Tenant(tenant="acme"),
        ["weight=2", "tier=priority", 'models=["llama-70b"]', "objectives.interactive.ttft_s=2"],
        Policy(),
    )
    assert changed == Tenant(
        tenant="acme",
        weight=2.0,
        tier="priority",
        models=("llama-70b",),
        objectives={"interactive": ClassObjective(ttft_s=2.0, tpot_s=0.1)},
    )
    assert assign(changed, ["models=null"]).models is None


def test_a_tenants_objective_begins_as_the_policys_and_null_gives_it_back():
    tenant = changed_tenant(Tenant(tenant="acme"), ["objectives.interactive.percentile=0.99"], Policy())
    assert tenant.objectives == {"interactive": ClassObjective(ttft_s=4.0, tpot_s=0.1, percentile=0.99)}
    later = Policy(objectives={"interactive": ClassObjective(ttft_s=9.0)})
    assert changed_tenant(tenant, ["weight=2"], later).objectives == tenant.objectives
    assert changed_tenant(tenant, ["objectives.interactive=null"], later).objectives == {}


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("key_hashes=[]", "rotate-key"),
        ("tenant=other", "cannot be set"),
        ("weight=0", "weight"),
        ("tokens_per_minute=-1", "tokens_per_minute"),
        ("tokens_per_min=1", "Nearest: tokens_per_minute"),
        ("objective.interactive.ttft_s=1", "Nearest: objectives"),
        ("objectives.interactiv.ttft_s=1", "no class interactiv"),
        ("objectives.batch.percentile=0", "percentile"),
        ("when_late=never", "when_late"),
    ],
)
def test_a_wrong_setting_of_a_tenant_is_refused_and_named(assignment: str, complaint: str):
    with pytest.raises(PolicyError, match=complaint):
        changed_tenant(Tenant(tenant="acme"), [assignment], Policy())


def test_prices_are_given_all_at_once_since_names_of_pools_have_dots():
    changed = apply(Policy(), ['gpu_hour_prices={"llama-3.1@1.0": 9.8, "*": 2}'])
    assert changed.gpu_hour_prices == {"llama-3.1@1.0": 9.8, "*": 2.0}
    assert apply(changed, ["gpu_hour_prices.*=3"]).gpu_hour_prices["*"] == 3.0
    assert settings_of(Policy())["gpu_hour_prices"] == {}
    assert differences(Policy(), apply(Policy(), ["gpu_hour_prices.*=3"])) == {
        "gpu_hour_prices.*": (None, 3.0)
    }
    assert reset(changed, Policy(), ["gpu_hour_prices"]) == Policy()
    with pytest.raises(PolicyError, match=r"MODEL@VERSION"):
        apply(Policy(), ['gpu_hour_prices={"llama": 1}'])
    with pytest.raises(PolicyError, match="would not be valid"):
        apply(Policy(), ["gpu_hour_prices.*=-1"])
