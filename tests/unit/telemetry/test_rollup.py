"""Capacity of pools and sites."""

from fleets import PROFILE, fleet, record, state

from telemetry_collector.policy.rollup import roll_up, roll_up_site


def test_a_pool_adds_up_its_ready_instances():
    view = fleet("a", "b")
    view.apply_state(state("a", running=3, waiting=1, kv_usage=0.5, time_ns=2), 0.0)
    (pool,) = roll_up(view, "local", 0.1, time_ns=7)
    assert (pool.ready, pool.running, pool.waiting) == (2, 3, 1)
    assert pool.free_slots == 2 * PROFILE.max_running_requests - 4
    assert pool.kv_free_tokens == PROFILE.kv_capacity_tokens * 3 // 2


def test_a_stale_instance_is_not_full_it_is_suspect_and_keeps_its_last_reading():
    view = fleet("a", "b")
    view.apply_state(state("b", running=2, time_ns=2), 1.0)
    (pool,) = roll_up(view, "local", 1.0, time_ns=7)
    stale = next(instance for instance in pool.instances if instance.instance == "a")
    assert (stale.liveness, stale.running, stale.age_s) == ("suspect", 0, 1.0)
    assert pool.ready == 1


def test_a_collector_that_hears_nothing_at_all_does_not_say_that_nothing_is_ready():
    view = fleet("a", "b")
    view.apply_state(state("b", reachable=False, time_ns=2), 0.0)
    (pool,) = roll_up(view, "local", 60.0, time_ns=7)
    assert pool.ready == 1, "the one last heard as reachable; FleetMind would refuse everything otherwise"


def test_an_unknown_metric_is_unknown_not_zero():
    view = fleet("a")
    view.apply_state(state("a", running=None, kv_usage=None, time_ns=2), 0.0)
    (pool,) = roll_up(view, "local", 0.1, time_ns=7)
    assert pool.running is None
    assert pool.kv_free_tokens is None
    assert pool.waiting == 0


def test_models_and_versions_are_pools_of_their_own_and_add_up_to_the_site():
    view = fleet("a")
    view.apply_record("b", record("b", model="tiny", version="v9"), 0.0)
    view.apply_state(state("b", running=4), 0.0)
    pools = roll_up(view, "local", 0.1, time_ns=7)
    assert [pool.pool for pool in pools] == ["llama-70b@v1", "tiny@v9"]
    site = roll_up_site(pools, "local", 7)
    assert (site.pools, site.instances, site.ready, site.running) == (2, 2, 2, 4)
