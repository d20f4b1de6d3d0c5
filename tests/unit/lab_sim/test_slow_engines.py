"""Engines that are not as fast as their registered profile says, or do not stay so."""

from pathlib import Path

import msgspec
import pytest
from sim_worlds import SMALL, Watcher, cluster, submission

from lab.errors import ScenarioError
from lab.scenarios.load import load_scenario
from lab.scenarios.model import Drift
from lab.scenarios.setting import cluster_of
from lab.sim.cluster import Cluster, Failure, InstanceSpec, Slowdown
from lab.sim.oracle import bound
from lab.sim.simulator import Simulation
from lab.sim.timing import timed
from tokenfleet.contracts.policy import Policy
from tokenfleet.engine.profile import LLAMA70B_TP4_H100, prefill_s


def _factors(spec: InstanceSpec) -> tuple[float, float]:
    """How much slower than nominal an engine prefills and decodes."""
    real, nominal = spec.engine_profile, LLAMA70B_TP4_H100
    prefill, step = real.prefill_s_per_token / nominal.prefill_s_per_token, real.base_s / nominal.base_s
    expected = timed(nominal, prefill=prefill, step=step)
    assert msgspec.structs.astuple(real)[1:] == pytest.approx(msgspec.structs.astuple(expected)[1:])
    return prefill, step


def test_a_profile_error_is_drawn_per_engine_and_seed_and_policies_are_told_the_nominal_profile() -> None:
    scenario = load_scenario("profile_error")
    specs = cluster_of(scenario, seed=1).instances
    factors = [factor for spec in specs for factor in _factors(spec)]
    assert len({round(factor, 9) for factor in factors}) == 2 * len(specs)
    assert all(0.85 <= factor <= 1.15 for factor in factors)
    assert all(spec.profile == LLAMA70B_TP4_H100 for spec in specs)
    assert cluster_of(scenario, seed=1).instances == specs
    assert cluster_of(scenario, seed=2).instances != specs


def test_the_same_engines_may_be_registered_as_they_are() -> None:
    wrong = load_scenario("profile_error")
    right = msgspec.structs.replace(wrong, profile_error_registered=True)
    for told, untold in zip(cluster_of(right, 3).instances, cluster_of(wrong, 3).instances, strict=True):
        assert told.profile == told.engine_profile == untold.engine_profile


def test_an_engine_takes_as_long_as_it_is_and_registers_as_it_is_said_to_be() -> None:
    slow = timed(SMALL, prefill=1.1, step=0.9)
    spec = InstanceSpec(name="i0", profile=SMALL, real_profile=slow)
    watcher = Watcher()
    (outcome,) = Simulation(Cluster(instances=(spec,)), [submission(0, 0.0, 5_000)], watcher).run().outcomes
    assert outcome.ttft_s == pytest.approx(prefill_s(slow, 5_000, 0))
    assert watcher.records["i0"].profile == SMALL


def _ttfts(changed: Cluster, *arrivals_s: float) -> list[float | None]:
    work = [submission(number, time_s, 5_000) for number, time_s in enumerate(arrivals_s)]
    return [outcome.ttft_s for outcome in Simulation(changed, work, Watcher()).run().outcomes]


def _slowed(*, at_s: float, failures: tuple[Failure, ...] = ()) -> Cluster:
    slowdown = Slowdown(instance="i0", at_s=at_s, factor=1.5)
    return msgspec.structs.replace(cluster(1, failures=failures), slowdowns=(slowdown,))


def test_an_engine_that_slows_down_is_as_fast_before_and_slower_after() -> None:
    before, after = _ttfts(_slowed(at_s=10.0), 5.0, 15.0)
    usual_s = prefill_s(SMALL, 5_000, 0)
    assert before == pytest.approx(usual_s)
    assert after == pytest.approx(1.5 * usual_s)


def test_the_iteration_in_progress_ends_as_it_began() -> None:
    usual_s = prefill_s(SMALL, 5_000, 0)
    (within,) = _ttfts(_slowed(at_s=5.0 + usual_s / 2), 5.0)
    assert within is not None
    assert usual_s < within < 1.5 * usual_s


def test_an_engine_that_is_dead_when_it_slows_down_comes_back_slower() -> None:
    failures = (Failure(instance="i0", at_s=5.0, back_s=20.0),)
    (after,) = _ttfts(_slowed(at_s=10.0, failures=failures), 25.0)
    assert after == pytest.approx(1.5 * prefill_s(SMALL, 5_000, 0))


def test_the_bound_is_of_the_engines_as_they_are() -> None:
    # Neither is fastest in everything: no instance beats the best of both.
    specs = tuple(
        InstanceSpec(name=f"i{number}", profile=SMALL, real_profile=timed(SMALL, prefill=prefill, step=step))
        for number, (prefill, step) in enumerate(((0.8, 1.2), (1.2, 0.8)))
    )
    found = bound(Cluster(instances=specs), [submission(0, 0.0, 6_000)], Policy())
    assert found["ttft_s"]["p50"] == pytest.approx(0.8 * prefill_s(SMALL, 6_000, 0))


def test_a_drift_of_an_instance_that_is_not_there_is_refused_with_those_that_are() -> None:
    wrong = msgspec.structs.replace(
        load_scenario("drift"), drift=Drift(instance="local-9", at_s=1.0, factor=2.0)
    )
    with pytest.raises(ScenarioError, match="local-9 is to slow down, but the instances are local-0"):
        cluster_of(wrong, seed=0)


@pytest.mark.parametrize(
    "text",
    ["profile_error = 1.0", "profile_error = -0.1", "drift = {instance = 'local-0', at_s = 1, factor = 0.5}"],
)
def test_an_error_of_everything_or_a_drift_that_speeds_up_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        f"name = 'x'\ndescription = ''\ntrace = 't'\nspeed = 1\n{text}\n[[pools]]\ninstances = 1\n"
    )
    with pytest.raises(ScenarioError, match=r"mine\.toml"):
        load_scenario(str(path))
