"""The runs of a what-if: every variant with every seed."""

from collections.abc import Mapping

import msgspec

from lab.sim.cluster import Cluster
from lab.sim.parallel import Watch, run_all
from lab.sim.simulator import Progress, Simulation
from lab.sim.tokenfleet_policy import TokenFleetPolicy
from lab.whatif.fleet import Fleet
from lab.whatif.judging import Figures, figures_of, simulated_rows
from lab.whatif.recording import Recording
from lab.whatif.traffic import Traffic
from tokenfleet.contracts.policy import Policy


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A policy on a fleet."""

    policy: Policy
    cluster: Cluster


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded, made ready to be run."""

    recording: Recording
    fleet: Fleet
    traffic: Traffic


def run_variants(
    case: Case,
    variants: Mapping[str, Variant],
    seeds: int,
    watch: Watch,
    processes: int | None = None,
) -> dict[str, list[Figures]]:
    """The figures of each variant by seed. A seed means the same draws to all variants.

    Raises:
        SimulationError: a process was killed.
    """

    def run(task: tuple[str, int], progressed: Progress) -> Figures:
        name, seed = task
        return run_once(case, variants[name], seed, progressed)

    tasks = [(name, seed) for seed in range(seeds) for name in variants]
    results = run_all(run, tasks, watch, processes)
    return {name: [results[name, seed] for seed in range(seeds)] for name in variants}


def run_once(case: Case, variant: Variant, seed: int, progressed: Progress | None = None) -> Figures:
    """One run."""
    submissions, requests = case.traffic.submissions(variant.policy, seed)
    policy = TokenFleetPolicy(seed, variant.policy)
    simulation = Simulation(variant.cluster, submissions, policy, on_progress=progressed)
    outcomes = simulation.run().outcomes
    return figures_of(simulated_rows(outcomes, requests, case.recording, case.fleet, policy.degraded))
