"""Runs what the bars need; figures of peers are taken from runs made before, where these are the same runs."""

from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from lab.bars.kinds import Bar
from lab.bars.model import OURS, WITH_ADMISSION, Measured, Needed
from lab.bars.table import RIGHT, WRONG
from lab.results.model import PolicyResult, Run
from lab.scenarios.load import load_scenario
from lab.scenarios.model import Scenario
from lab.sim.experiment import Experiment, load_trace, run_experiment
from lab.sim.parallel import Watch

FEWEST_SEEDS = 2
"""Without a spread there is no noise to compare with."""

Progress = Callable[[str, int], AbstractContextManager[Watch]]
"""Shows the progress of so many requests under a label."""


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure."""

    runs: Path
    """A folder of runs made before."""
    fresh: bool = False
    """Run the peers again even so."""
    recorded: bool = False
    """Take TokenFleet's own figures from those runs too, where they are."""
    seeds: int | None = None
    """As many as the run made before had, if None."""
    requests: int | None = None
    trace: str | None = None
    processes: int | None = None


def needs_of(bars: Iterable[Bar]) -> dict[str, Needed]:
    """Who has to run which scenario, for all bars together."""
    needed: dict[str, Needed] = {}
    for bar in bars:
        for name, who in bar.needs.items():
            needed[name] = needed[name] | who if name in needed else who
    return needed


def measure(name: str, needed: Needed, how: Measuring, progress: Progress) -> Measured:
    """TokenFleet in one scenario and the peers needed there.

    Raises:
        TokenFleetError: a trace or a scenario cannot be read.
    """
    experiment = Experiment(
        scenario=_scenario(name),
        policies=(),
        seeds=how.seeds or FEWEST_SEEDS,
        requests=how.requests,
        trace=how.trace,
        processes=how.processes,
    )
    if how.recorded and name != RIGHT:
        recorded = _run_before(experiment, how, needed.ours | needed.peers)
        if recorded is not None:
            return Measured(policies=recorded.policies, kept=frozenset(recorded.policies))
    if not needed.peers:
        return Measured(policies=_run(_with(experiment, needed.ours), name, progress))
    before = None if how.fresh else _run_before(experiment, how, needed.peers)
    if before is None:
        peers = _run(_with(experiment, needed.peers), name, progress)
        kept: frozenset[str] = frozenset()
    else:
        experiment = msgspec.structs.replace(experiment, seeds=before.run.seeds, speed=before.run.speed)
        peers = before.baselines
        kept = frozenset(peers)
    ours = set(needed.ours)
    if OURS in ours and Measured(policies=peers).refusing:
        ours.add(WITH_ADMISSION)
    return Measured(policies={**_run(_with(experiment, ours), name, progress), **peers}, kept=kept)


def _scenario(name: str) -> Scenario:
    if name == RIGHT:
        return msgspec.structs.replace(load_scenario(WRONG), profile_error_registered=True)
    return load_scenario(name)


def _with(experiment: Experiment, policies: Iterable[str]) -> Experiment:
    return msgspec.structs.replace(experiment, policies=tuple(sorted(policies)))


def _run(experiment: Experiment, name: str, progress: Progress) -> dict[str, PolicyResult]:
    offered = len(load_trace(experiment, 0).requests) * experiment.seeds * len(experiment.policies)
    with progress(f"{name}: {', '.join(experiment.policies)}"[:60], offered) as watch:
        document = run_experiment(experiment, "", watch)
    return msgspec.convert(document, Run, strict=False).policies


def _run_before(experiment: Experiment, how: Measuring, needed: Set[str]) -> Run | None:
    """The run of the same requests with the same seeds, if it is there and has all policies needed."""
    path = how.runs / f"{experiment.scenario.name}.json"
    try:
        before = msgspec.json.decode(path.read_bytes(), type=Run)
    except (OSError, msgspec.MsgspecError):
        return None
    trace = load_trace(experiment, 0)
    same = (
        before.run.trace == trace.source
        and before.run.requests == len(trace.requests)
        and experiment.scenario.speed in (None, before.run.speed)  # None: the run before looked for it
        and before.run.description == experiment.scenario.description
        and before.run.seeds == (how.seeds or before.run.seeds)
    )
    return before if same and needed <= before.policies.keys() else None
