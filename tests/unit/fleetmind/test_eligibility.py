"""Who may serve a request at all: law first, each refusal with its reason, whatever is stale, cut off or changing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.fleetmind.worlds import MODEL, TENANT, capacity, granted, know, placer, request, summary

from fleetmind.policy.eligibility import NoPlace, why_not
from fleetmind.policy.placement import Placement, Placer
from fleetmind.policy.sites import Pool
from tokenfleet.contracts.policy import Fleet, Rollout, Tenant
from tokenfleet.residency import narrowed, refusal

FLEET = Fleet()
EU = Tenant(tenant="t", regions=("eu",))


def decide(view: Placer, spec, tenant=TENANT, now_s: float = 0.1, fleet: Fleet = FLEET):
    return view.place(spec, "r1", tenant, (), fleet, now_s)


@pytest.mark.parametrize(
    ("spec", "tenant", "changes", "reason"),
    [
        (request(), None, {}, "tenant_unknown"),
        (request(), Tenant(tenant="t", models=("other",)), {}, "model_not_permitted"),
        (request(), Tenant(tenant="t", sites=("A",)), {}, "site_not_permitted"),
        (request(sites=("A",)), TENANT, {}, "site_not_permitted"),
        (request(), EU, {}, "region_unknown"),
        (request(regions=("eu",)), TENANT, {"region": "us"}, "region_not_permitted"),
        (request(regions=()), TENANT, {"region": "us"}, "region_not_permitted"),
        (request(version="v2"), TENANT, {}, "other_version"),
        (request(adapter="sql"), TENANT, {"adapters": ["chat"]}, "adapter_missing"),
        (request(9_000), TENANT, {"max_prompt_tokens": 8_191}, "context_too_long"),
        (request(), TENANT, {"ready": 0}, "no_ready_instance"),
        (request(adapter="sql"), EU, {"adapters": ["sql"], "region": "eu"}, None),
    ],
)
def test_each_refusal_has_its_reason(spec, tenant, changes, reason):
    assert why_not(spec, tenant, Pool(capacity("B", **changes), 0.0), (), 1.0) == reason


def test_a_silent_site_is_not_sent_others_requests_but_still_serves_its_own():
    pool = Pool(capacity("B"), 0.0)
    assert why_not(request(), TENANT, pool, (), 60.0) == "site_silent"
    assert why_not(request(entry_site="B"), TENANT, pool, (), 60.0) is None


@pytest.mark.parametrize(
    ("spec", "status", "reason"),
    [
        (request(regions=("eu",)), 403, "region_not_permitted"),
        (request(sites=("X",)), 403, "site_not_permitted"),
        (request(version="v9"), 404, "version_not_found"),
        (request(adapter="none"), 404, "adapter_missing"),
        (request(200_000), 400, "context_too_long"),
    ],
)
def test_a_request_that_nothing_may_serve_is_told_why(spec, status, reason):
    view = placer()
    know(view, "B", [0.0], region="us")
    choice = decide(view, spec)
    assert isinstance(choice, NoPlace) and (choice.status, choice.reason) == (status, reason)
    assert choice.message


def test_asking_for_regions_only_narrows():
    assert narrowed(None, None) is None
    assert narrowed(None, ("eu",)) == ("eu",) == narrowed(("eu",), None)
    assert narrowed(("eu",), ("us",)) == ()
    assert narrowed(("eu", "us"), ("us", "cn")) == ("us",)


# -- a request that may not leave its region never leaves it, whatever goes wrong


def test_stale_view_a_site_that_has_moved_or_says_nothing_more_of_where_it_is_takes_nothing_that_is_bound():
    view = placer(A=[9.0])
    know(view, "B", [0.0], region="eu")
    know(view, "A", [9.0], region="eu")
    assert decide(view, request(), EU).site == "B"
    know(view, "B", [0.0], 0.1, region=None)
    assert decide(view, request(), EU).site == "A"
    # What was heard long ago is not trusted for other sites at all.
    know(view, "B", [0.0], 0.2, region="eu")
    assert decide(view, request(), EU, now_s=30.0).site == "A"


def test_partition_an_entry_that_is_cut_off_from_its_region_refuses():
    view = placer()
    know(view, "B", [0.0], region="eu")
    know(view, "C", [0.0], region="us")
    assert decide(view, request(), EU).site == "B"
    know(view, "C", [0.0], 20.0, region="us")  # B is not heard any more
    choice = decide(view, request(), EU, now_s=20.0)
    assert isinstance(choice, NoPlace) and choice.status in (403, 503)


def test_restart_a_fleetmind_that_has_not_heard_of_the_tenant_yet_obeys_what_the_request_says():
    view = placer(A=[0.0])
    know(view, "B", [0.0], region="eu")
    bound = request(sites=("B",), regions=("eu",))
    choice = decide(view, bound, None)  # its own site is not permitted either
    assert isinstance(choice, NoPlace)
    assert decide(view, bound, TENANT).site == "B"  # an older, wider record changes nothing


def test_clock_skew_residency_asks_no_clock():
    for time_ns in (1, 2**62):
        view = placer(A=[9.0])
        view.sites.apply(capacity("A", region="us"), 0.0)
        known = capacity("B", region="us").model_copy(update={"time_ns": time_ns})
        view.sites.apply(known, 0.0)
        view.sites.summarised(summary("B", [0.0]), 0.0)
        granted(view, "B")
        assert isinstance(decide(view, request(), EU), NoPlace)


def test_roll_out_a_version_that_is_only_elsewhere_does_not_take_bound_requests_there():
    fleet = Fleet(rollouts={MODEL: Rollout(weights={"v2": 1.0}, warm_up_s=0)})
    view = placer()
    know(view, "A", [0.0], region="eu")
    view.sites.apply(capacity("B", "v2", region="us"), 0.0)
    choice = decide(view, request(), EU, fleet=fleet)
    assert isinstance(choice, NoPlace) and choice.reason == "no_version_ready"
    assert decide(view, request(version="v1"), EU, fleet=fleet).site == "A"


sites = st.sampled_from(["A", "B", "C", "D"])
regions = st.sampled_from(["eu", "us", None])
bounds = st.one_of(st.none(), st.lists(st.sampled_from(["eu", "us"]), max_size=2, unique=True).map(tuple))
site_bounds = st.one_of(st.none(), st.lists(sites, max_size=2, unique=True).map(tuple))
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("capacity"), sites, regions, st.integers(0, 2)),
        st.tuples(st.just("summary"), sites, st.floats(0, 20)),
        st.tuples(st.just("grant"), sites),
        st.tuples(st.just("bad"), sites),
        st.tuples(st.just("silence"), st.floats(0, 15)),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


@given(
    happened=happenings, tenant_regions=bounds, tenant_sites=site_bounds, asked=bounds, known=st.booleans()
)
def test_no_view_however_it_came_about_places_a_request_where_it_may_not_run(
    happened, tenant_regions, tenant_sites, asked, known
):
    tenant = Tenant(tenant="t", regions=tenant_regions, sites=tenant_sites)
    spec = request(sites=tenant_sites, regions=narrowed(tenant_regions, asked))
    view, now_s = Placer("A"), 0.0
    latest: dict[str, str | None] = {}
    for kind, *details in happened:
        if kind == "capacity":
            site, region, ready = details
            latest[site] = region
            view.sites.apply(capacity(site, ready=ready, region=region), now_s)
        elif kind == "summary":
            view.sites.summarised(summary(details[0], [details[1]]), now_s)
        elif kind == "grant":
            granted(view, details[0], now_s)
        elif kind == "bad":
            view.backoffs[details[0], f"{MODEL}@v1"].bad(now_s)
        elif kind == "silence":
            now_s += details[0]
        else:
            view, latest = Placer("A"), {}
        choice = decide(view, spec, tenant if known else None, now_s)
        if isinstance(choice, Placement):
            assert refusal(spec, tenant, choice.site, latest[choice.site]) is None
