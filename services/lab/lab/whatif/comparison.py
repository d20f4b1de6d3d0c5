"""What came of a what-if: whether it can be trusted, and what would have been different."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from lab.whatif.judging import Figures, figures_of, flat, recorded_rows
from lab.whatif.runs import Case
from lab.whatif.statistics import Difference, paired

TOLERANCE = 0.05
"""The re-run's median goodput may differ from the recorded one by so much of it."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """Whether running again what was live gives what was recorded."""

    trusted: bool
    goodput_off: float | None
    """The re-run's median goodput over the recorded, minus one; None when none was recorded."""
    measured: tuple[str, ...] = ()
    """How the re-run differs, when it is not to be trusted."""
    likely: tuple[str, ...] = ()
    """What in the recording may be the reason. Said in any case."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All columns; the figures of runs are medians over seeds."""

    window: dict[str, Any]
    requests: int
    company: int
    """Requests before and after the window that are run again and not counted."""
    seeds: int
    recorded: dict[str, float | None]
    rerun: dict[str, float | None]
    what_if: dict[str, float | None] | None
    difference: dict[str, Difference | None]
    """What-if minus re-run, paired by seed."""
    trust: Trust
    settings: dict[str, tuple[Any, Any]]
    """Of the policy, live and what-if, where they differ."""
    instances: dict[str, tuple[int, int]]
    """By pool, recorded and what-if."""
    runs: dict[str, list[dict[str, float | None]]]
    notes: tuple[str, ...] = ()


def recorded_figures(case: Case) -> Figures:
    """The recorded column."""
    return figures_of(recorded_rows(case.recording))


def medians(runs: Sequence[Figures]) -> dict[str, float | None]:
    """Figure by figure; None where no run has it."""
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, value in flat(run).items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return {name: median(of_runs) if of_runs else None for name, of_runs in values.items()}


def differences(before: Sequence[Figures], after: Sequence[Figures]) -> dict[str, Difference | None]:
    """Of every figure, paired by seed."""
    earlier, later = [flat(run) for run in before], [flat(run) for run in after]
    names = dict.fromkeys(name for run in (*earlier, *later) for name in run)
    return {
        name: paired([run.get(name) for run in earlier], [run.get(name) for run in later]) for name in names
    }


def judge(case: Case, recorded: Mapping[str, float | None], runs: Sequence[Figures]) -> Trust:
    """Compare a re-run's medians with what was recorded."""
    rerun = medians(runs)
    was, came = recorded["goodput_tokens_per_s"] or 0.0, rerun["goodput_tokens_per_s"] or 0.0
    off = came / was - 1 if was else None
    trusted = abs(off) <= TOLERANCE if off is not None else came == 0.0
    return Trust(
        trusted=trusted,
        goodput_off=off,
        measured=() if trusted else tuple(_measured(recorded, rerun)),
        likely=(*_likely(case), *_unsteady(runs, was)),
    )


MEASURED = (
    ("goodput", "goodput_tokens_per_s", "{:,.1f} tokens/s"),
    ("completed", "completed", "{:,.0f}"),
    ("refused", "refused", "{:,.0f}"),
    ("timed out", "timed_out", "{:,.0f}"),
    ("failed", "failed", "{:,.0f}"),
    ("met, of offered", "attainment_offered", "{:.1%}"),
    ("TTFT P50", "ttft_p50_s", "{:.3f} s"),
    ("TTFT P95", "ttft_p95_s", "{:.3f} s"),
    ("TPOT P95", "tpot_p95_s", "{:.4f} s"),
    ("prompt tokens reused", "prefix_reuse", "{:.1%}"),
)
SAME = 0.01
"""Figures closer than this share of the recorded one are not worth naming."""


def _measured(recorded: Mapping[str, float | None], rerun: Mapping[str, float | None]) -> list[str]:
    found: list[str] = []
    for label, name, written in MEASURED:
        was, came = recorded.get(name), rerun.get(name)
        if was == came or (was is not None and came is not None and abs(came - was) <= SAME * abs(was)):
            continue
        said = ["none" if value is None else written.format(value) for value in (was, came)]
        found.append(f"{label}: {said[0]} recorded, {said[1]} re-run")
    return found


def _unsteady(runs: Sequence[Figures], was: float) -> list[str]:
    """Said where seeds alone make more of a difference than is allowed."""
    least, most = (pick(run.goodput_tokens_per_s for run in runs) for pick in (min, max))
    if most - least <= TOLERANCE * was:
        return []
    return [
        f"the re-run's own goodput goes from {least:,.1f} to {most:,.1f} tokens/s over the seeds: a longer window, or one "
        "that does not end with a few long answers, would say more"
    ]


def _likely(case: Case) -> list[str]:
    recording, fleet = case.recording, case.fleet
    counted = recording.counted
    ends = [one.ended for one in counted if one.ended is not None]
    share = case.traffic.unknown_lengths / len(counted)
    causes = (
        (fleet.changes, "the fleet changed in the window ({} absences and drains, run again as recorded)"),
        (fleet.policies - 1, "the policy changed {} times in the window; one is run again"),
        (
            len(counted) - len(ends),
            "{} requests have no recorded end (not ended yet, or events missing); they are run and not counted",
        ),
        (
            recording.endings_only,
            "{} requests have an end and no beginning (events missing); they are left out",
        ),
        (recording.unreadable, "{} messages could not be read"),
        (
            sum(one.degraded for one in ends),
            "{} decisions were degraded (made by an ingress alone, for want of answers)",
        ),
        (recording.retried, "{} attempts failed and were retried"),
        (sum(one.outcome == "lost" for one in ends), "{} requests were lost with their ingress"),
        (
            sum(not one.tokens_exact for one in ends if one.outcome == "completed"),
            "{} completed answers have estimated lengths",
        ),
        (case.traffic.without_blocks, "{} requests were hashed at block sizes that the engines do not share"),
    )
    found = [text.format(count) for count, text in causes if count > 0]
    if share > TOLERANCE:
        found.append(f"the lengths of {share:.0%} of the answers are drawn, for they did not complete")
    return found + list(fleet.notes)
