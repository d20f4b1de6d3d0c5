"""Instances that take nothing new for a while, and requests that come with all that their client said."""

import msgspec
from sim_worlds import Watcher, cluster, submission

from lab.sim.cluster import Drain
from lab.sim.simulator import Simulation
from lab.sim.workload import arrival
from tokenfleet.contracts.requests import Objective, RequestSpec


def test_a_drained_instance_finishes_what_it_has_and_takes_nothing_new_until_it_is_back() -> None:
    pool = msgspec.structs.replace(cluster(2), drains=(Drain(instance="i0", at_s=0.5, back_s=20.0),))
    work = [submission(n, n * 0.1, 2_000, 200) for n in range(4)]
    work += [submission(n, 5.0 + n * 0.1, 2_000, 20) for n in range(4, 8)]
    work += [submission(n, 25.0 + n * 0.1, 2_000, 20) for n in range(8, 12)]
    outcomes = Simulation(pool, work, watcher := Watcher()).run().outcomes
    assert all(outcome.outcome == "completed" and outcome.attempt == 1 for outcome in outcomes)
    assert {outcome.instance for outcome in outcomes[:4]} == {"i0", "i1"}
    assert {outcome.instance for outcome in outcomes[4:8]} == {"i1"}
    assert {outcome.instance for outcome in outcomes[8:]} == {"i0", "i1"}
    assert watcher.left_instances == ["i0"]
    assert set(watcher.generations) == {1}, "it is the same engine, with its cache"


def test_a_recorded_request_reaches_the_router_as_its_client_described_it() -> None:
    spec = RequestSpec(
        model="some-model",
        entry_site="elsewhere",
        ingress="ingress-7",
        input_tokens=1_000,
        max_output_tokens=77,
        block_size_tokens=64,
        task="agent",
        objective=Objective(ttft_s=1.5),
        fairness_id="user-3",
        queue_ttl_s=9.0,
        deadline_ns=123,
    )
    recorded = msgspec.structs.replace(submission(0, 1.0), spec=spec, version="v2")
    seen = arrival(recorded, "the-model", 16, ("i3",))
    assert seen.spec == msgspec.structs.replace(
        spec,
        model="the-model",
        version="v2",
        entry_site="local",
        block_size_tokens=16,
        excluded_instances=("i3",),
    )
    assert len(seen.blocks) == 1_000 // 16
