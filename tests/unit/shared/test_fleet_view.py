"""Who is alive, who is ready."""

from fleets import POOL, fleet, record, state

from tokenfleet.fleet_view import DEAD_AFTER_S, SUSPECT_AFTER_S, FleetView


def names(fleet_view: FleetView, now_s: float) -> list[str]:
    return [view.record.instance for view in fleet_view.ready(POOL, now_s)]


def test_an_instance_is_doubted_then_given_up_within_two_seconds_of_silence():
    fleet_view = fleet("a")
    view = fleet_view.get("a")
    assert view is not None
    assert view.liveness(SUSPECT_AFTER_S - 0.01) == "alive"
    assert view.liveness(SUSPECT_AFTER_S) == "suspect"
    assert view.liveness(DEAD_AFTER_S) == "dead"
    assert DEAD_AFTER_S < 2.0


def test_an_engine_its_agent_cannot_reach_is_doubted_at_once_and_dead_soon():
    fleet_view = fleet("a")
    fleet_view.apply_state(state("a", reachable=False, time_ns=2), 10.0)
    view = fleet_view.get("a")
    assert view is not None
    assert view.liveness(10.0) == "suspect"
    fleet_view.apply_state(state("a", reachable=False, time_ns=3), 10.6)
    assert view.liveness(10.6) == "dead"
    fleet_view.apply_state(state("a", time_ns=4), 11.0)
    assert view.liveness(11.0) == "alive"


def test_a_silent_instance_is_passed_over_while_others_speak():
    fleet_view = fleet("a", "b")
    fleet_view.apply_state(state("b", time_ns=2), 5.0)
    assert names(fleet_view, 5.0) == ["b"]


def test_when_nothing_at_all_is_heard_the_last_reachable_instances_stay_ready():
    fleet_view = fleet("a", "b")
    fleet_view.apply_state(state("b", reachable=False, time_ns=2), 0.1)
    assert names(fleet_view, 60.0) == ["a"]


def test_a_draining_instance_takes_nothing_new():
    fleet_view = fleet("a", "b")
    fleet_view.apply_record("a", record("a", draining=True), 0.1)
    assert names(fleet_view, 0.2) == ["b"]


def test_a_refreshed_record_keeps_the_reading_and_a_new_generation_starts_afresh():
    fleet_view = fleet("a")
    fleet_view.apply_record("a", record("a", tokens_per_chunk=8), 0.2)
    assert names(fleet_view, 0.3) == ["a"]
    fleet_view.apply_record("a", record("a", generation=2), 0.4)
    view = fleet_view.get("a")
    assert view is not None
    assert view.state is None
    assert not fleet_view.apply_state(state("a", generation=1, time_ns=9), 0.5), (
        "a reading of the old process"
    )


def test_an_older_reading_never_replaces_a_newer_one():
    fleet_view = fleet("a")
    fleet_view.apply_state(state("a", running=5, time_ns=10), 1.0)
    assert not fleet_view.apply_state(state("a", running=1, time_ns=9), 1.1)
    view = fleet_view.get("a")
    assert view is not None and view.state is not None
    assert view.state.running == 5


def test_pools_appear_and_vanish_with_their_instances():
    fleet_view = fleet("a")
    fleet_view.apply_record("x", record("x", version="v2"), 0.0)
    assert fleet_view.pools_of_model("llama-70b") == ["llama-70b@v1", "llama-70b@v2"]
    fleet_view.apply_record("x", None, 1.0)
    assert fleet_view.pools_of_model("llama-70b") == ["llama-70b@v1"]
    assert fleet_view.models() == ["llama-70b"]


def test_an_instance_that_was_never_heard_of_is_not_ready_yet():
    fleet_view = FleetView()
    fleet_view.apply_record("a", record("a"), 0.0)
    fleet_view.apply_record("b", record("b", model="other"), 0.0)
    fleet_view.apply_state(state("b"), 0.1)
    assert names(fleet_view, 0.1) == []
    fleet_view.apply_state(state("a"), 0.2)
    assert names(fleet_view, 0.2) == ["a"]


def test_registered_instances_are_waited_for_until_their_silence_means_death():
    fleet_view = FleetView()
    for name in ("a", "leaving"):
        fleet_view.apply_record(name, record(name, draining=name == "leaving"), 0.0)
    fleet_view.apply_state(state("elsewhere"), 0.1)  # so that it is not this process that hears nothing
    assert names(fleet_view, 0.1) == []
    assert [view.record.instance for view in fleet_view.unheard(POOL, 0.1)] == ["a"]
    assert fleet_view.unheard(POOL, DEAD_AFTER_S) == []
    fleet_view.apply_state(state("a"), 0.2)
    assert fleet_view.unheard(POOL, 0.2) == []
    assert names(fleet_view, 0.2) == ["a"]
