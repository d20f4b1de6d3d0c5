"""Versions of a model: weights, drain, warm-up and roll back; a pinned version is honoured or refused."""

from collections import Counter

from unit.fleetmind.worlds import MODEL, TENANT, capacity, request

from fleetmind.policy.eligibility import NoPlace
from fleetmind.policy.placement import Placement, Placer
from fleetmind.policy.rollout import FIRST_SHARE, Versions, drawn
from tokenfleet.contracts.policy import Fleet, Rollout


def entry(**ready: int) -> Placer:
    view = Placer("A")
    for version, count in ready.items():
        view.sites.apply(capacity("A", version, ready=count), 0.0)
    return view


def place(view: Placer, rollout: Rollout, name: str = "r", now_s: float = 0.0, **spec) -> Placement | NoPlace:
    fleet = Fleet(rollouts={MODEL: rollout})
    return view.place(request(**spec), name, TENANT, (), fleet, now_s)


def versions_of(view: Placer, rollout: Rollout, now_s: float = 0.0, count: int = 400) -> Counter[str]:
    placed = [place(view, rollout, f"r{number}", now_s) for number in range(count)]
    return Counter(one.pool.rpartition("@")[2] for one in placed if isinstance(one, Placement))


def test_requests_are_shared_out_by_weight_and_a_request_keeps_its_version():
    rollout, view = Rollout(weights={"v1": 0.9, "v2": 0.1}, warm_up_s=0), entry(v1=1, v2=1)
    assert 15 < versions_of(view, rollout)["v2"] < 70
    assert place(view, rollout, "same") == place(view, rollout, "same")


def test_without_weights_any_version_serves():
    view = entry(v1=3, v2=1)
    placed = [view.place(request(), f"r{number}", TENANT, (), Fleet(), 0.0) for number in range(400)]
    count = Counter(one.pool for one in placed if isinstance(one, Placement))
    assert 60 <= count[f"{MODEL}@v2"] <= 140


def test_a_version_without_weight_serves_only_what_is_pinned_to_it():
    rollout, view = Rollout(weights={"v2": 1.0}, warm_up_s=0), entry(v1=1, v2=1)
    assert versions_of(view, rollout) == {"v2": 400}
    pinned = place(view, rollout, version="v1")
    assert isinstance(pinned, Placement) and pinned.pool == f"{MODEL}@v1"


def test_a_drained_version_takes_nothing_new_and_says_so():
    rollout, view = Rollout(weights={"v1": 1.0}, drained=("v2",)), entry(v1=1, v2=1)
    pinned = place(view, rollout, version="v2")
    assert (
        isinstance(pinned, NoPlace) and pinned.reason == "version_drained" and f"{MODEL}@v2" in pinned.message
    )


def test_a_pinned_version_that_nobody_serves_is_refused_clearly():
    missing = place(entry(v1=1), Rollout(weights={"v1": 1.0}), version="v3")
    assert isinstance(missing, NoPlace) and missing.status == 404
    assert missing.reason == "version_not_found" and f"{MODEL}@v3" in missing.message


def test_a_version_that_has_just_appeared_warms_up():
    rollout, view = Rollout(weights={"v1": 1.0, "v2": 1.0}, warm_up_s=60), entry(v1=1)
    assert versions_of(view, rollout, 100.0) == {"v1": 400}
    view.sites.apply(capacity("A", "v2"), 100.0)
    assert versions_of(view, rollout, 100.0)["v2"] < 50
    assert 90 < versions_of(view, rollout, 130.0)["v2"] < 180
    assert 160 < versions_of(view, rollout, 161.0)["v2"] < 240


def test_what_is_there_when_fleetmind_starts_is_not_new():
    versions = Versions()
    versions.ready({"v1"}, 5.0)
    rollout = Rollout(weights={"v1": 2.0, "v2": 1.0}, warm_up_s=60)
    assert versions.weights(rollout, 5.0) == {"v1": 2.0}
    versions.ready({"v1", "v2"}, 6.0)
    assert versions.weights(rollout, 6.0) == {"v1": 2.0, "v2": FIRST_SHARE}


def failing(
    versions: Versions, version: str, share: float, rollout: Rollout, requests: int = 100
) -> str | None:
    said = [
        versions.ended(version, failed=number % 100 < 100 * share, rollout=rollout)
        for number in range(requests)
    ]
    return next(filter(None, said), None)


def test_a_version_that_fails_far_more_than_the_others_is_rolled_back_until_its_weight_changes():
    rollout, versions = Rollout(weights={"v1": 0.9, "v2": 0.1}, warm_up_s=0), Versions()
    versions.ready({"v1", "v2"}, 0.0)
    assert failing(versions, "v1", 0.01, rollout) is None
    assert "50%" in (failing(versions, "v2", 0.5, rollout, 40) or "") or versions.rolled_back() == ["v2"]
    assert versions.weights(rollout, 1.0) == {"v1": 0.9}
    again = Rollout(weights={"v1": 0.9, "v2": 0.2}, warm_up_s=0)
    assert set(versions.weights(again, 1.0)) == {"v1", "v2"}
    assert versions.rolled_back() == []


def test_when_everything_fails_it_is_not_the_versions_fault():
    rollout, versions = Rollout(weights={"v1": 0.5, "v2": 0.5}), Versions()
    versions.ready({"v1", "v2"}, 0.0)
    failing(versions, "v1", 0.6, rollout)
    assert failing(versions, "v2", 0.7, rollout) is None


def test_roll_back_can_be_left_to_people():
    rollout, versions = Rollout(weights={"v1": 0.5, "v2": 0.5}, roll_back=False), Versions()
    versions.ready({"v1", "v2"}, 0.0)
    failing(versions, "v1", 0.0, rollout)
    assert failing(versions, "v2", 1.0, rollout) is None


def test_a_draw_falls_on_each_version_by_its_weight():
    weights = {"a": 1.0, "b": 3.0, "c": 0.0}
    assert [drawn(weights, draw) for draw in (0.0, 0.24, 0.26, 0.999)] == ["a", "a", "b", "b"]
    assert drawn({}, 0.5) is None and drawn({"a": 0.0}, 0.5) is None
