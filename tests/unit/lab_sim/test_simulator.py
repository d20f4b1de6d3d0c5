"""What becomes of requests in a simulation, case by case."""

import msgspec
import pytest
from sim_worlds import SMALL, Keeper, Watcher, cluster, submission

from lab.sim.api import Arrival, Decision, Route
from lab.sim.cluster import Failure
from lab.sim.policies import make_policy
from lab.sim.simulator import Simulation
from tokenfleet.contracts.fleet import InstanceState
from tokenfleet.contracts.policy import Tenant
from tokenfleet.engine.profile import prefill_s


def test_a_request_alone_takes_as_long_as_the_engine_model_says() -> None:
    (outcome,) = Simulation(cluster(1), [submission(0, 1.0, 5_000, 100)], Watcher()).run().outcomes
    assert outcome.outcome == "completed"
    assert outcome.ttft_s == pytest.approx(prefill_s(SMALL, 5_000, 0))
    assert outcome.tpot_s == pytest.approx(0.0152, rel=0.01)


def test_a_repeated_prompt_is_reused_from_the_cache_of_the_instance_that_had_it() -> None:
    work = [submission(0, 0.0, 5_000, 5, session=7), submission(1, 5.0, 5_000, 5, session=7)]
    first, second = Simulation(cluster(1), work, Watcher()).run().outcomes
    assert (first.reused_tokens, second.reused_tokens) == (0, 4_992)


@pytest.mark.parametrize("name", ["tokenfleet", "tokenfleet_no_admission", "round_robin", "least_requests"])
def test_a_prompt_longer_than_any_context_is_rejected_as_live_and_the_others_are_served(name: str) -> None:
    work = [submission(0, 0.0, 13_000), submission(1, 0.1)]
    too_long, other = Simulation(cluster(), work, make_policy(name, 0)).run().outcomes
    assert too_long.outcome == "rejected"
    assert too_long.status in (400, 503)
    assert other.outcome == "completed"


@pytest.mark.parametrize("name", ["tokenfleet", "round_robin", "llm_d", "dynamo_kv"])
def test_without_instances_everything_is_rejected_with_503(name: str) -> None:
    outcomes = (
        Simulation(cluster(0), [submission(0, 0.0), submission(1, 1.0)], make_policy(name, 0)).run().outcomes
    )
    assert [(outcome.outcome, outcome.status) for outcome in outcomes] == [("rejected", 503)] * 2


def test_a_request_of_zero_length_is_rejected() -> None:
    (outcome,) = Simulation(cluster(), [submission(0, 0.0, 0)], Watcher()).run().outcomes
    assert (outcome.outcome, outcome.status) == ("rejected", 400)


def test_nothing_arrives_and_the_simulation_ends() -> None:
    assert Simulation(cluster(), [], Watcher()).run().outcomes == []


def test_a_client_that_waited_too_long_times_out_and_the_engine_drops_its_request() -> None:
    watcher = Watcher()
    work = [submission(0, 0.0, 1_000, 2_000, timeout_s=2.0), submission(1, 10.0)]
    late, other = Simulation(cluster(1), work, watcher).run().outcomes
    assert (late.outcome, late.status, late.ended_s) == ("timed_out", 504, 2.0)
    assert 50 < late.output_tokens < 200
    assert other.outcome == "completed"
    assert watcher.ends == ["r0", "r1"]


def test_an_instance_dies_and_requests_without_a_token_are_retried_once_on_another() -> None:
    watcher = Watcher()
    failures = (Failure(instance="i1", at_s=0.2),)
    # i1 is next in turn: a long prompt that cannot be done when it dies.
    (outcome,) = Simulation(cluster(failures=failures), [submission(0, 0.1, 10_000)], watcher).run().outcomes
    assert (outcome.outcome, outcome.instance, outcome.attempt) == ("completed", "i0", 2)
    assert outcome.retried_input_tokens == 10_000
    assert watcher.ends == ["r0", "r0"]


def test_an_instance_dies_and_a_request_that_had_a_token_fails() -> None:
    failures = (Failure(instance="i1", at_s=2.0),)
    (outcome,) = (
        Simulation(cluster(failures=failures), [submission(0, 0.1, 500, 1_000)], Watcher()).run().outcomes
    )
    assert (outcome.outcome, outcome.status, outcome.attempt) == ("failed", 502, 1)
    assert outcome.output_tokens > 50


def test_a_dead_instance_leaves_the_registry_and_comes_back_cold_as_a_new_generation() -> None:
    watcher = Watcher()
    failures = (Failure(instance="i0", at_s=1.0, back_s=4.0),)
    work = [submission(0, 0.0, 5_000, 5, session=7), submission(1, 6.0, 5_000, 5, session=7)]
    before, after = Simulation(cluster(1, failures=failures), work, watcher).run().outcomes
    assert watcher.left_instances == ["i0"]
    assert watcher.generations == [1, 2]
    assert (before.outcome, after.outcome, after.reused_tokens) == ("completed", "completed", 0)


def test_what_arrives_while_the_only_instance_is_away_is_rejected_not_held_for_ever() -> None:
    failures = (Failure(instance="i0", at_s=1.0),)
    (outcome,) = Simulation(cluster(1, failures=failures), [submission(0, 5.0)], Watcher()).run().outcomes
    assert (outcome.outcome, outcome.status) == ("rejected", 503)


def test_held_requests_start_when_they_are_released() -> None:
    (outcome,) = Simulation(cluster(1), [submission(0, 0.0)], Keeper(until_s=3.0)).run().outcomes
    assert outcome.outcome == "completed"
    assert outcome.ttft_s == pytest.approx(3.0 + prefill_s(SMALL, 1_000, 0), abs=0.1)


def test_a_policy_that_never_releases_makes_clients_time_out_and_nothing_hangs() -> None:
    (outcome,) = Simulation(cluster(1), [submission(0, 0.0)], Keeper()).run().outcomes
    assert (outcome.outcome, outcome.instance, outcome.ended_s) == ("timed_out", None, 600.0)


def test_an_answer_from_another_site_takes_the_round_trip_longer() -> None:
    def ttft_s(entry_site: str) -> float:
        far = msgspec.structs.replace(
            cluster(1, sites=["B"]), round_trip_s={("A", "B"): 0.06, ("B", "A"): 0.06}
        )
        (outcome,) = Simulation(far, [submission(0, 0.0, entry_site=entry_site)], Watcher()).run().outcomes
        assert outcome.ttft_s is not None
        return outcome.ttft_s

    assert ttft_s("A") - ttft_s("B") == pytest.approx(0.06)


def test_a_router_that_ignores_where_a_tenant_may_run_is_turned_away() -> None:
    class Careless(Watcher):
        def decide(self, arrival: Arrival, now_s: float) -> Decision:
            return Route("i1")

    confined = msgspec.structs.replace(
        cluster(2, sites=["B", "C"]), tenants={"default": Tenant(tenant="default", sites=("B",))}
    )
    (outcome,) = Simulation(confined, [submission(0, 0.0, entry_site="B")], Careless()).run().outcomes
    assert (outcome.outcome, outcome.status, outcome.reason) == ("rejected", 403, "not_permitted")


def test_telemetry_is_as_old_as_the_cluster_says() -> None:
    ages: list[float] = []

    class Clocked(Watcher):
        def reading(self, state: InstanceState, now_s: float) -> None:
            super().reading(state, now_s)
            ages.append(now_s - state.time_ns / 1e9)

    stale = msgspec.structs.replace(cluster(2), telemetry_delay_s=(0.05, 1.0))
    Simulation(stale, [submission(0, 0.0, 8_000, 200)], Clocked()).run()
    assert {round(age, 3) for age in ages} == {0.0, 0.05, 1.0}
