"""Which site and pool, and why not."""

from collections import Counter

from fleets import request

from fleetmind.policy.placement import NoPlace, Placement, SiteView, place
from tokenfleet.contracts.control import Capacity, InstanceCapacity, Liveness
from tokenfleet.contracts.policy import Tenant

TENANT = Tenant(tenant="t")


def capacity(
    site: str, version: str = "v1", ready: int = 1, instances: int = 1, liveness: Liveness = "dead"
) -> Capacity:
    return Capacity(
        time_ns=1,
        site=site,
        pool=f"llama-70b@{version}",
        model="llama-70b",
        version=version,
        instances=[
            InstanceCapacity(instance=f"{site}-{index}", liveness="alive" if ready else liveness, age_s=0.0)
            for index in range(instances)
        ],
        ready=ready,
        waiting=0,
        running=0,
        kv_free_tokens=None,
        free_slots=None,
    )


def sites(*capacities: Capacity) -> SiteView:
    view = SiteView()
    for entry in capacities:
        view.apply(entry, 0.0)
    return view


def test_a_ready_local_pool_is_preferred():
    choice = place(request(), "r1", TENANT, sites(capacity("far"), capacity("local")), 0.0)
    assert choice == Placement("local", "llama-70b@v1", "local")


def test_another_site_helps_when_nothing_local_is_ready():
    view = sites(capacity("far"), capacity("local", ready=0))
    assert place(request(), "r1", TENANT, view, 0.0) == Placement(
        "far", "llama-70b@v1", "no_local_instance_ready"
    )


def test_a_site_the_tenant_may_not_use_does_not_exist_for_it():
    view = sites(capacity("far"), capacity("local", ready=0))
    choice = place(request(), "r1", Tenant(tenant="t", sites=("local",)), view, 0.0)
    assert isinstance(choice, NoPlace) and choice.status == 503


def test_an_unknown_tenant_never_leaves_its_entry_site():
    choice = place(request(), "r1", None, sites(capacity("far")), 0.0)
    assert isinstance(choice, NoPlace) and choice.status == 404


def test_a_model_the_tenant_may_not_use_is_not_found():
    choice = place(request(), "r1", Tenant(tenant="t", models=("other",)), sites(capacity("local")), 0.0)
    assert isinstance(choice, NoPlace) and choice.status == 404


def test_a_pinned_version_is_honoured_or_refused():
    view = sites(capacity("local", "v1"), capacity("local", "v2"))
    assert place(request(version="v2"), "r1", TENANT, view, 0.0) == Placement(
        "local", "llama-70b@v2", "local"
    )
    missing = place(request(version="v3"), "r1", TENANT, view, 0.0)
    assert isinstance(missing, NoPlace) and missing.status == 404 and "llama-70b@v3" in missing.message


def test_versions_share_requests_by_their_ready_instances_and_a_request_keeps_its_version():
    view = sites(capacity("local", "v1", ready=3), capacity("local", "v2", ready=1))
    placed = {f"r{n}": place(request(), f"r{n}", TENANT, view, 0.0) for n in range(400)}
    count = Counter(choice.pool for choice in placed.values() if isinstance(choice, Placement))
    assert 60 <= count["llama-70b@v2"] <= 140
    assert all(place(request(), name, TENANT, view, 0.0) == choice for name, choice in placed.items())


def test_a_silent_site_is_not_sent_others_requests_but_still_serves_its_own():
    view = sites(capacity("far"))
    assert isinstance(place(request(), "r1", TENANT, view, 60.0), NoPlace)
    assert isinstance(place(request(entry_site="far"), "r1", TENANT, view, 60.0), Placement)


def test_a_pool_that_lost_its_last_instance_is_gone():
    view = sites(capacity("local"))
    view.apply(capacity("local", ready=0, instances=0), 1.0)
    choice = place(request(), "r1", TENANT, view, 1.0)
    assert isinstance(choice, NoPlace) and choice.status == 404


def test_an_instance_that_is_only_doubted_is_left_to_its_sites_own_deciders():
    view = sites(capacity("local", ready=0, liveness="suspect"))
    assert place(request(), "r1", TENANT, view, 0.0) == Placement("local", "llama-70b@v1", "local_doubted")
