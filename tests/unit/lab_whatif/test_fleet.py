"""The fleet of a window from the situations recorded."""

import msgspec
import pytest
from unit.lab_whatif.recorded import BEGIN_S, PROFILE, SCALE, run_events, situation, situations, window

from lab.sim.cluster import Failure
from lab.whatif.errors import WhatIfError
from lab.whatif.fleet import Fleet, fleet_of
from lab.whatif.recording import record
from tokenfleet.contracts.situation import Situation
from tokenfleet.fleet_view import DEAD_AFTER_S

KNOWN_S = DEAD_AFTER_S * SCALE
LEAD_S = 2 * KNOWN_S


@pytest.fixture(scope="module")
def events():
    return run_events(requests=30)


def fleet(events, *said: Situation) -> Fleet:
    return fleet_of(record(window(), situations(said) + events))


def begin_s(events) -> float:
    """Of the first request, in engine seconds of the recorded run."""
    return (record(window(), events).requests[0].submitted.time_ns / 1e9 - BEGIN_S) * SCALE


def restarted(names: list[str], at_s: float, instance: str) -> Situation:
    base = situation(names, at_s)
    (group,) = base.groups
    return msgspec.structs.replace(
        base, groups=(msgspec.structs.replace(group, generations={**group.generations, instance: 2}),)
    )


def draining(names: list[str], at_s: float, instance: str) -> Situation:
    base = situation([name for name in names if name != instance], at_s)
    (group,) = base.groups
    drained = msgspec.structs.replace(group, draining=True, generations={instance: 1})
    return msgspec.structs.replace(base, groups=(group, drained))


def test_a_fleet_that_stands_still_has_neither_failures_nor_drains(events):
    cluster = fleet(events, situation(["a", "b"]), situation(["a", "b"], 5.0)).cluster
    assert [spec.name for spec in cluster.instances] == ["a", "b"]
    assert all(spec.profile == PROFILE for spec in cluster.instances)
    assert (cluster.failures, cluster.drains) == ((), ())
    assert cluster.telemetry_interval_s == pytest.approx(0.02 * SCALE)


def test_who_joins_later_is_away_until_then_and_who_leaves_died_before_that_was_known(events):
    since_s = begin_s(events)
    made = fleet(
        events, situation(["a"]), situation(["a", "b"], since_s + 10.0), situation(["b"], since_s + 12.0)
    )
    (a, b) = sorted(made.cluster.failures, key=lambda failure: failure.instance)
    assert b == Failure(instance="b", at_s=0.0, back_s=b.back_s)
    assert b.back_s == pytest.approx(LEAD_S + 10.0, abs=1e-3)
    assert a.at_s == pytest.approx(LEAD_S + 12.0 - KNOWN_S, abs=1e-3)
    assert a.back_s is None
    assert made.changes == 2


def test_a_restart_is_a_death_and_a_return_without_its_cache(events):
    (failure,) = fleet(
        events, situation(["a", "b"]), restarted(["a", "b"], begin_s(events) + 10.0, "b")
    ).cluster.failures
    assert failure.instance == "b"
    assert failure.back_s == pytest.approx(LEAD_S + 10.0, abs=1e-3)


def test_a_drained_instance_takes_nothing_new_until_it_is_let_in_again(events):
    since_s = begin_s(events)
    made = fleet(
        events,
        situation(["a", "b"]),
        draining(["a", "b"], since_s + 4.0, "b"),
        situation(["a", "b"], since_s + 9.0),
    )
    (drain,) = made.cluster.drains
    assert (drain.instance, drain.at_s) == ("b", pytest.approx(LEAD_S + 4.0, abs=0.01))
    assert drain.back_s == pytest.approx(LEAD_S + 9.0, abs=1e-3)


def test_only_the_last_situation_before_the_first_request_counts(events):
    made = fleet(events, situation(["x", "y"], -900.0), situation(["a"], -2.0))
    assert [spec.name for spec in made.cluster.instances] == ["a"]


def test_no_situation_or_no_instance_or_two_time_scales_are_errors_that_say_what_to_do(events):
    with pytest.raises(WhatIfError, match=r"No situation .* is recorded"):
        fleet(events)
    with pytest.raises(WhatIfError, match="No instance was there"):
        fleet(events, situation([]))
    with pytest.raises(WhatIfError, match="1 and 5 times real time"):
        fleet(events, situation(["a"], time_scale=1.0))
