"""What is recorded of a site, and when."""

import msgspec
from fleets import POOL, PROFILE, fleet, record, state

from telemetry_collector.policy.situation import REPEAT_S, ReadingInterval, SituationLog, describe
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.situation import InstanceGroup, Situation
from tokenfleet.fleet_view import DEAD_AFTER_S, SUSPECT_AFTER_S, FleetView


def situation(
    view: FleetView | None = None,
    *,
    now_s: float = 0.0,
    policy: Policy | None = None,
    tenants: tuple[Tenant, ...] = (),
) -> Situation:
    return describe(
        view or fleet("a", "b"),
        policy or Policy(),
        tenants,
        site="local",
        time_scale=5.0,
        telemetry_interval_s=None,
        now_s=now_s,
        time_ns=round(now_s * 1e9),
    )


def test_instances_that_differ_in_nothing_but_their_names_are_said_once_and_without_their_addresses():
    (group,) = situation().groups
    assert group == InstanceGroup(
        pool=POOL, profile=PROFILE, block_size_tokens=64, kv_events=True, generations={"a": 1, "b": 1}
    )
    assert b"http" not in msgspec.json.encode(situation())


def test_a_draining_instance_is_told_apart():
    view = fleet("a", "b")
    view.apply_record("b", record("b", draining=True), 0.0)
    assert {name: group.draining for group in situation(view).groups for name in group.generations} == {
        "a": False,
        "b": True,
    }


def test_an_instance_silent_for_a_moment_still_belongs_and_one_given_up_does_not():
    view = fleet("a", "b")
    view.apply_state(state("a", time_ns=2), DEAD_AFTER_S)
    assert set(situation(view, now_s=SUSPECT_AFTER_S).groups[0].generations) == {"a", "b"}
    assert set(situation(view, now_s=DEAD_AFTER_S).groups[0].generations) == {"a"}


def test_no_key_hash_leaves_the_bucket_and_tenants_without_settings_of_their_own_need_no_saying():
    acme = Tenant(tenant="acme", key_hashes=("00ff",), weight=2.0)
    plain = Tenant(tenant="plain", key_hashes=("11ee",))
    said = situation(tenants=(plain, acme))
    assert said.tenants == (Tenant(tenant="acme", weight=2.0),)
    encoded = msgspec.json.encode(said)
    assert b"00ff" not in encoded
    assert b"11ee" not in encoded


def test_a_hundred_instances_take_a_few_thousand_bytes():
    assert len(msgspec.json.encode(situation(fleet(*(f"engine-{n}" for n in range(100)))))) < 6_000


def test_a_change_is_said_when_it_lasted_two_looks_and_as_of_when_it_was_first_seen():
    log = SituationLog()
    first = situation()
    assert log.due(first, 0.0) is None
    due = log.due(situation(now_s=0.5), 0.5)
    assert due == first
    log.said(due, 0.5)
    stricter = Policy(misses_allowed=0.1)
    assert log.due(situation(now_s=1.0, policy=stricter), 1.0) is None
    assert log.due(situation(now_s=1.5), 1.5) is None, "it was only a moment"
    assert log.due(situation(now_s=2.0, policy=stricter), 2.0) is None
    due = log.due(situation(now_s=2.5, policy=stricter), 2.5)
    assert due is not None
    assert (due.policy, due.time_ns) == (stricter, 2_000_000_000)


def test_what_stays_is_repeated_and_what_was_not_kept_is_tried_again():
    log = SituationLog()
    log.due(situation(), 0.0)
    assert log.due(situation(now_s=0.5), 0.5) is not None
    due = log.due(situation(now_s=1.0), 1.0)
    assert due is not None, "nobody said that it was kept"
    log.said(due, 1.0)
    assert log.due(situation(now_s=2.0), 2.0) is None
    again = log.due(situation(view := fleet("a", "b", now_s=60.0), now_s=1.0 + REPEAT_S), 1.0 + REPEAT_S)
    assert again == situation(view, now_s=1.0 + REPEAT_S)


def test_the_interval_between_readings_is_measured_and_an_absence_is_none():
    interval = ReadingInterval()
    assert interval.mean_s is None
    for at_s in (0.0, 0.1, 0.2, 0.3):
        interval.heard(state("a", time_ns=round(at_s * 1e9)))
    interval.left("a")
    interval.heard(state("a", time_ns=round(50e9)))
    interval.heard(state("a", time_ns=round(50.2e9)))
    assert interval.mean_s == 0.125
