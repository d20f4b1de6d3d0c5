"""Tables of who was refused and why, of tenants, of batch lines and of a policy's steering."""

from collections.abc import Callable, Sequence

import msgspec

from lab.results.findings import ranked
from lab.results.model import BatchFigures, PartFigures, PolicyFigures, PolicyResult, Run
from lab.results.tables import Cell, Table, Valued, mark_best, part_cell, rows_of, share
from lab.results.writing import Written, percent, seconds, spread, whole


class Single(msgspec.Struct, frozen=True):
    """A figure of its own: its label, where it is, how it is written and which way is better."""

    label: str
    value: Callable[[PolicyFigures], float | None]
    written: Written
    more_is_better: bool | None


BATCH = (
    Single("done by the deadline", lambda f: f.batch and f.batch.deadlines_met, percent, True),
    Single("output, tokens/s", lambda f: f.batch and f.batch.output_tokens_per_s, whole, True),
    Single("work, engine s/s", lambda f: f.batch and f.batch.work_per_s, seconds, True),
    Single("others' work", lambda f: f.batch and f.batch.others_work_per_s, seconds, None),
    Single("lines waited for, s", lambda f: f.batch and f.batch.window_s, whole, False),
)
STEERING = (
    Single("knobs moved", lambda f: f.steadiness and f.steadiness.changes, whole, None),
    Single("turned back", lambda f: f.steadiness and f.steadiness.turned_back, whole, False),
    Single("settled, s", lambda f: f.steadiness and f.steadiness.settled_s, seconds, False),
)
STARVED = Single("longest wait, s", lambda f: f.starved_s, seconds, False)


def part_tables(run: Run) -> list[Table]:
    """Those of them that the run has figures for."""
    tables = (refusals(run), tenants(run), batch(run), longest_waits(run), steering(run))
    return [table for table in tables if table]


def refusals(run: Run) -> Table | None:
    """How many requests each policy turned away, by reason."""
    totals: dict[str, float] = {}
    for result in run.policies.values():
        for reason, count in result.rejected_by_reason.items():
            totals[reason] = totals.get(reason, 0) + count
    reasons = sorted((reason for reason, count in totals.items() if count), key=lambda one: -totals[one])
    if not reasons:
        return None
    columns = [[_refused(result, reason) for result in _results(run)] for reason in reasons]
    return Table("Refused, by reason", tuple(reasons), rows_of(run, columns))


def tenants(run: Run) -> Table | None:
    """Attainment per tenant, and of all but the one that floods."""
    names = list(run.tenants)
    if not names:
        return None
    labels = [f"{name} ({whole(offered)} offered)" for name, offered in run.tenants.items()]
    columns = [_part_column(run, _tenant(name)) for name in names]
    if any(result.others for result in run.policies.values()):
        labels.insert(0, "all but the one that floods")
        columns.insert(0, _part_column(run, lambda figures: figures.others))
    heading = "By tenant: met, of offered (of admitted; refused; TTFT P50 / P95 in s)"
    return Table(heading, tuple(labels), rows_of(run, columns))


def batch(run: Run) -> Table | None:
    """What batch lines got."""
    figures: list[BatchFigures] = [result.batch for result in run.policies.values() if result.batch]
    if not figures:
        return None
    heading = f"Batch: {whole(figures[0].lines)} lines with deadlines (`lab.sim.batch` defines work)"
    return _table(run, heading, BATCH)


def longest_waits(run: Run) -> Table | None:
    """How long the long-context request waited that waited longest: for its first token, or for a refusal."""
    if all(result.starved_s is None for result in run.policies.values()):
        return None
    return _table(run, "Long-context requests", (STARVED,))


def steering(run: Run) -> Table | None:
    """What policies changed about themselves, where any did."""
    if not any(result.steadiness and result.steadiness.changes for result in run.policies.values()):
        return None
    return _table(run, "Steering by feedback, in the worst phase between two steps of the load", STEERING)


def _results(run: Run) -> list[PolicyResult]:
    return [run.policies[name] for name in ranked(run)]


def _table(run: Run, heading: str, figures: Sequence[Single]) -> Table:
    columns = [
        mark_best([_cell(one, result) for result in _results(run)], one.more_is_better) for one in figures
    ]
    return Table(heading, tuple(one.label for one in figures), rows_of(run, columns))


def _cell(single: Single, result: PolicyResult) -> Valued:
    value = single.value(result)
    low, high = (one and single.value(one) for one in (result.min, result.max))
    return value, Cell(single.written(value), spread(single.written, low, high))


def _refused(result: PolicyResult, reason: str) -> Cell:
    count = result.rejected_by_reason.get(reason)
    if not count:
        return Cell()
    return Cell(whole(count), detail=f"({percent(share(count, result.offered))})")


def _part_column(run: Run, part: Callable[[PolicyFigures], PartFigures | None]) -> list[Cell]:
    return mark_best([part_cell(result, part) for result in _results(run)], more_is_better=True)


def _tenant(name: str) -> Callable[[PolicyFigures], PartFigures | None]:
    return lambda figures: figures.tenants.get(name)
