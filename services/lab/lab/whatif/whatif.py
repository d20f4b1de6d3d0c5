"""From a recording to a comparison."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lab.sim.parallel import Watch
from lab.whatif.comparison import Comparison, differences, judge, medians, recorded_figures
from lab.whatif.fleet import fleet_of
from lab.whatif.judging import flat
from lab.whatif.policy_file import differences as changed_settings
from lab.whatif.policy_file import read_policy
from lab.whatif.recording import Recording
from lab.whatif.resizing import Size, resized
from lab.whatif.runs import Case, Variant, run_variants
from lab.whatif.traffic import traffic_of
from tokenfleet import subjects

RERUN, WHAT_IF = "rerun", "what_if"

ProgressBar = Callable[[int], AbstractContextManager[Watch]]
"""Shows the progress of so many simulated requests."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be different."""

    policy: Path | None = None
    sizes: Sequence[Size] = ()
    seeds: int = 5
    processes: int | None = None


def what_if(recording: Recording, asked: Asked, progress: ProgressBar) -> Comparison:
    """Run a recording again as it was, and as is asked.

    Raises:
        WhatIfError: the recording lacks what it takes.
        PolicyError: the policy file cannot be used.
        SimulationError: a process was killed.
    """
    fleet = fleet_of(recording)
    case = Case(recording=recording, fleet=fleet, traffic=traffic_of(recording, fleet))
    variants = {RERUN: Variant(policy=fleet.policy, cluster=fleet.cluster)}
    if asked.policy or asked.sizes:
        policy = read_policy(asked.policy, fleet.policy) if asked.policy else fleet.policy
        variants[WHAT_IF] = Variant(policy=policy, cluster=resized(fleet, asked.sizes))
    with progress(len(recording.requests) * asked.seeds * len(variants)) as watch:
        runs = run_variants(case, variants, asked.seeds, watch, asked.processes)
    recorded, rerun = flat(recorded_figures(case)), medians(runs[RERUN])
    other = runs.get(WHAT_IF)
    return Comparison(
        window={
            "from": _iso(recording.window.from_ns),
            "to": _iso(recording.window.to_ns),
            "warm_up_s": recording.window.warm_up_ns / 1e9,
            "time_scale": fleet.clock.time_scale,
        },
        requests=len(recording.counted) + len(recording.turned_away),
        company=len(recording.requests) - len(recording.counted),
        seeds=asked.seeds,
        recorded=dict(recorded),
        rerun=rerun,
        what_if=medians(other) if other else None,
        difference=differences(runs[RERUN], other) if other else {},
        trust=judge(case, recorded, runs[RERUN]),
        settings=changed_settings(fleet.policy, variants[WHAT_IF].policy) if other else {},
        instances=_sizes(case, variants),
        runs={name: [dict(flat(run)) for run in of_variant] for name, of_variant in runs.items()},
        notes=_notes(case, variants),
    )


def _sizes(case: Case, variants: dict[str, Variant]) -> dict[str, tuple[int, int]]:
    if WHAT_IF not in variants:
        return {}
    before = case.fleet.pools
    after = msgspec.structs.replace(case.fleet, cluster=variants[WHAT_IF].cluster).pools
    return {pool: (before[pool], after[pool]) for pool in before if before[pool] != after[pool]}


def _notes(case: Case, variants: dict[str, Variant]) -> tuple[str, ...]:
    other = variants.get(WHAT_IF)
    notes: list[str] = []
    if other and other.policy.objectives != case.fleet.policy.objectives:
        notes.append("all columns are judged by the live policy's objectives; the what-if decides by its own")
    if any(one.left_after_s is not None for one in case.traffic.requests):
        notes.append("clients that left are taken to leave after the same time again")
    unserved = sum(one.version not in _versions(case) for one in case.traffic.requests)
    if unserved:
        notes.append(f"{unserved} requests ask for models that no instance served")
    return tuple(notes)


def _versions(case: Case) -> set[str]:
    return {subjects.token(pool) for pool in case.fleet.pools}


def _iso(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")
