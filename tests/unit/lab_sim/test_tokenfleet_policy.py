"""TokenFleet's live deciders under the simulator."""

import msgspec
from sim_worlds import cluster, submission

from lab.sim.cluster import Failure
from lab.sim.simulator import Simulation
from lab.sim.tokenfleet_policy import TokenFleetPolicy
from tokenfleet.contracts.policy import Policy


def test_a_prefix_goes_where_its_blocks_are_cached() -> None:
    work = [
        submission(0, 0.0, 8_000, 5, session=7),
        *(submission(n, n * 3.0, 8_000, 5, session=7) for n in range(1, 5)),
    ]
    outcomes = Simulation(cluster(4), work, TokenFleetPolicy(0)).run().outcomes
    assert len({outcome.instance for outcome in outcomes}) == 1
    assert all(outcome.reused_tokens > 7_900 for outcome in outcomes[1:])


def test_without_kv_events_routed_prompts_are_assumed_cached() -> None:
    pool = cluster(4)
    silent = msgspec.structs.replace(
        pool, instances=tuple(msgspec.structs.replace(spec, kv_events=False) for spec in pool.instances)
    )
    work = [submission(n, n * 3.0, 8_000, 5, session=7) for n in range(5)]
    outcomes = Simulation(silent, work, TokenFleetPolicy(0)).run().outcomes
    assert len({outcome.instance for outcome in outcomes}) == 1


def test_under_overload_admission_refuses_early_with_429_and_without_it_nothing_is_refused() -> None:
    work = [submission(n, n * 0.05, 8_000, 20) for n in range(80)]
    strict = Simulation(cluster(), work, TokenFleetPolicy(0)).run().outcomes
    open_to_all = Simulation(cluster(), work, TokenFleetPolicy(0, Policy(admission=False))).run().outcomes
    refused = [outcome for outcome in strict if outcome.outcome == "rejected"]
    assert refused and {outcome.status for outcome in refused} == {429}
    assert all(outcome.outcome != "rejected" for outcome in open_to_all)


def test_a_retry_after_a_death_goes_elsewhere_and_is_not_refused() -> None:
    dying = cluster(2, failures=(Failure(instance="i0", at_s=0.3), Failure(instance="i1", at_s=400.0)))
    work = [submission(n, 0.0 + n * 0.01, 8_000, 20) for n in range(4)]
    outcomes = Simulation(dying, work, TokenFleetPolicy(0, Policy(admission=False))).run().outcomes
    assert all(outcome.outcome == "completed" and outcome.instance == "i1" for outcome in outcomes)
    assert {outcome.attempt for outcome in outcomes} == {1, 2}


def test_a_request_is_served_at_its_entry_site_when_that_has_a_pool() -> None:
    work = [submission(n, n * 2.0, entry_site="C" if n % 2 else "B") for n in range(6)]
    outcomes = Simulation(cluster(4, sites=["B", "C"]), work, TokenFleetPolicy(0)).run().outcomes
    assert [outcome.site for outcome in outcomes] == ["B", "C"] * 3
