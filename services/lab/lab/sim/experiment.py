"""One scenario under several policies and seeds: the document that `tokenfleet lab run --json` writes."""

from collections.abc import Sequence
from typing import Any

import msgspec

from lab.errors import ScenarioError
from lab.scenarios.load import find_trace
from lab.scenarios.model import Scenario
from lab.scenarios.setting import cluster_of, step_times_s, workload_of
from lab.sim.figures import Observed, policy_figures, spread
from lab.sim.oracle import bound
from lab.sim.parallel import Watch, run_all
from lab.sim.policies import description, make_policy
from lab.sim.simulator import Progress, Simulation
from lab.sim.workload import prompt_blocks
from lab.traces.load import open_trace
from lab.traces.model import Trace
from tokenfleet.contracts.policy import Policy

BOUND = "bound"
REFERENCE = Policy()
"""Whose objectives every policy is measured by."""

SPEED_TOLERANCE = 0.005
ATTAINMENT_TOLERANCE = 0.002


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run."""

    scenario: Scenario
    policies: tuple[str, ...]
    seeds: int = 1
    trace: str | None = None
    """Instead of the scenario's."""
    speed: float | None = None
    requests: int | None = None
    """The first so many of the trace only."""
    processes: int | None = None
    """How many simulate at once; as many as there are cores if None."""

    @property
    def trace_name(self) -> str:
        return self.trace or find_trace(self.scenario.trace, self.scenario.otherwise)


def load_trace(experiment: Experiment, seed: int) -> Trace:
    """The trace as one seed sees it: it places arrivals inside coarse timestamps, and makes generated ones.

    Raises:
        TraceError: it cannot be read.
    """
    return open_trace(experiment.trace_name, experiment.requests, seed)


def run_policy(
    experiment: Experiment,
    name: str,
    speed: float,
    seed: int,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """The figures of one policy with one seed."""
    cluster = cluster_of(experiment.scenario, seed)
    scenario, trace = experiment.scenario, load_trace(experiment, seed)
    work = workload_of(scenario, trace, speed, seed)
    policy = make_policy(name, seed)
    observed = Observed(
        profiles={spec.name: spec.engine_profile for spec in cluster.instances},
        flooding=scenario.flood.tenant if scenario.flood else None,
        steps_s=step_times_s(scenario, trace, speed),
    )
    result = Simulation(cluster, work, policy, on_progress=on_progress).run()
    return policy_figures(result, REFERENCE, observed)


def run_bound(experiment: Experiment, speed: float, seed: int) -> dict[str, Any]:
    """The bound for one seed."""
    cluster = cluster_of(experiment.scenario, seed)
    return bound(
        cluster, workload_of(experiment.scenario, load_trace(experiment, seed), speed, seed), REFERENCE
    )


def find_speed(experiment: Experiment, watch: Watch) -> float:
    """The speed asked for, or the one at which the target's policy attains its share, found by bisection.

    Raises:
        ScenarioError: no speed in the target's range does.
    """
    if experiment.speed is not None:
        return experiment.speed
    target = experiment.scenario.target
    if target is None:
        assert experiment.scenario.speed is not None
        return experiment.scenario.speed
    low, high = target.least_speed, target.greatest_speed
    if _attained(experiment, target.policy, low, watch) < target.attainment:
        raise ScenarioError(f"{target.policy} attains less than {target.attainment:.0%} even at {low:g}x")
    if _attained(experiment, target.policy, high, watch) > target.attainment:
        raise ScenarioError(
            f"{target.policy} attains more than {target.attainment:.0%} even at {high:g}x; "
            "a longer trace, or `greatest_speed` in the scenario, may help"
        )
    speed = (low + high) / 2
    while high - low > SPEED_TOLERANCE:
        attained = _attained(experiment, target.policy, speed, watch)
        if abs(attained - target.attainment) <= ATTAINMENT_TOLERANCE:
            break
        low, high = (speed, high) if attained > target.attainment else (low, speed)
        speed = (low + high) / 2
    return round(speed, 3)


def run_experiment(experiment: Experiment, command: str, watch: Watch) -> dict[str, Any]:
    """Run everything, in several processes, and make the document of it.

    Raises:
        TokenFleetError: the trace cannot be read, or the scenario cannot be run.
    """
    trace = load_trace(experiment, 0)
    _check_block_size(experiment, trace)
    speed = find_speed(experiment, watch)
    tasks = [(name, seed) for seed in range(experiment.seeds) for name in (BOUND, *experiment.policies)]
    results = _run_tasks(experiment, speed, tasks, watch)
    seeds = range(experiment.seeds)
    bounds = [results[BOUND, seed] for seed in seeds]
    policies = {name: [results[name, seed] for seed in seeds] for name in experiment.policies}
    return {
        "scenario": experiment.scenario.name,
        "run": {
            "seeds": experiment.seeds,
            "command": command,
            "trace": trace.source,
            "speed": speed,
            "description": experiment.scenario.description,
            "requests": len(trace.requests),
            "assumptions": list(trace.assumptions),
        },
        "bound": _over_seeds(bounds, {"relaxation": bounds[0]["relaxation"]}),
        "policies": {
            name: _over_seeds(runs, {"citation": description(name)}) for name, runs in policies.items()
        },
    }


def keep_others(document: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """`document` with the policies that only an equal run made before has: those that did not change since.

    Raises:
        ScenarioError: that run was of something else.
    """
    differing = [
        key
        for key in ("seeds", "trace", "speed", "requests", "description")
        if before["run"].get(key) != document["run"][key]
    ]
    if before["scenario"] != document["scenario"] or differing:
        raise ScenarioError(
            f"The figures to keep are of another run ({', '.join(differing) or 'another scenario'} differ): make "
            "them anew, or leave out --keep"
        )
    run = {**document["run"], "command": before["run"]["command"]}
    return {**document, "run": run, "policies": {**before["policies"], **document["policies"]}}


def _check_block_size(experiment: Experiment, trace: Trace) -> None:
    for request in trace.head(1).requests:
        try:
            prompt_blocks(request, experiment.scenario.block_size_tokens)
        except ValueError as error:
            raise ScenarioError(f"{experiment.scenario.name}: {error}") from error


def _over_seeds(runs: Sequence[dict[str, Any]], texts: dict[str, str]) -> dict[str, Any]:
    figures = [{key: run[key] for key in run if key not in ("series", "relaxation")} for run in runs]
    return {**spread(figures), **texts, "series": runs[0]["series"]}


def _attained(experiment: Experiment, name: str, speed: float, watch: Watch) -> float:
    watch(f"finding the load: {name} at {speed:.3f}x", 0)
    figures = run_policy(experiment, name, speed, 0)
    return figures["attainment_offered"] or 0.0


def _run_tasks(
    experiment: Experiment, speed: float, tasks: Sequence[tuple[str, int]], watch: Watch
) -> dict[tuple[str, int], dict[str, Any]]:
    def run(task: tuple[str, int], progressed: Progress) -> dict[str, Any]:
        name, seed = task
        if name == BOUND:
            return run_bound(experiment, speed, seed)
        return run_policy(experiment, name, speed, seed, progressed)

    return run_all(run, tasks, watch, experiment.processes)
