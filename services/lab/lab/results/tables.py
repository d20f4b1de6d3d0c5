"""The tables of a run, as text that both the HTML report and docs/results.md lay out."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from lab.results.findings import ranked
from lab.results.model import (
    LENGTHS,
    OURS,
    BoundFigures,
    Figures,
    PartFigures,
    PolicyFigures,
    PolicyResult,
    Prediction,
    PredictionFigures,
    Run,
    title,
)
from lab.results.writing import ABSENT, Written, milliseconds, percent, seconds, spread, whole


class Cell(msgspec.Struct, frozen=True):
    """A median over the seeds, the range over the seeds (empty if it reads the same), and more in small."""

    text: str = ABSENT
    range: str = ""
    detail: str = ""
    best: bool = False
    """No policy has a better one."""


class Row(msgspec.Struct, frozen=True):
    """One policy, or the bound."""

    name: str
    cells: tuple[Cell, ...]
    ours: bool = False
    bound: bool = False


class Table(msgspec.Struct, frozen=True):
    """Policies down, figures across."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


class Column(msgspec.Struct, frozen=True):
    """A figure: its label, where it is, how it is written and which way is better (None: neither)."""

    label: str
    value: Callable[[Figures], float | None]
    written: Written
    more_is_better: bool | None
    bound: Callable[[BoundFigures], float | None] = lambda _: None


GOODPUT = Column(
    "goodput, tokens/s",
    lambda f: f.goodput_tokens_per_s,
    whole,
    more_is_better=True,
    bound=lambda b: b.goodput_tokens_per_s,
)
MET_OFFERED = Column(
    "met, of offered",
    lambda f: f.attainment_offered,
    percent,
    more_is_better=True,
    bound=lambda b: b.attainment_offered,
)
MET_ADMITTED = Column("met, of admitted", lambda f: f.attainment_admitted, percent, more_is_better=True)
OUTPUT = Column("all output, tokens/s", lambda f: f.output_tokens_per_s, whole, more_is_better=True)
REFUSED = Column("refused", lambda f: share(f.rejected, f.offered), percent, more_is_better=None)
TTFT_P50 = Column("TTFT P50, s", lambda f: f.ttft_s.p50, seconds, False, lambda b: b.ttft_s.p50)
TTFT_P95 = Column("TTFT P95, s", lambda f: f.ttft_s.p95, seconds, False, lambda b: b.ttft_s.p95)
TTFT_P99 = Column("TTFT P99, s", lambda f: f.ttft_s.p99, seconds, False, lambda b: b.ttft_s.p99)
TPOT_P95 = Column("TPOT P95, ms", lambda f: f.tpot_s.p95, milliseconds, more_is_better=False)
REUSED = Column("prefix reused", lambda f: f.prefix_reuse, percent, more_is_better=None)

OVERALL = (
    GOODPUT,
    OUTPUT,
    MET_OFFERED,
    MET_ADMITTED,
    REFUSED,
    TTFT_P50,
    TTFT_P95,
    TTFT_P99,
    TPOT_P95,
    REUSED,
)
PER_CLASS = (GOODPUT, OUTPUT, MET_OFFERED, MET_ADMITTED, REFUSED, TTFT_P50, TTFT_P95, TPOT_P95)


def overall(run: Run) -> Table:
    """Every policy over all requests, and the bound."""
    columns = _columns(OVERALL, [(result, result.min, result.max) for result in _results(run)])
    bound = Row("bound", tuple(_bound_cell(run, column) for column in OVERALL), bound=True)
    rows = rows_of(run, columns)
    return Table("All requests", tuple(column.label for column in OVERALL), (bound, *rows))


def per_class(run: Run) -> list[Table]:
    """One table per class."""
    tables: list[Table] = []
    for name, offered in run.classes.items():
        groups = [
            (result.classes.get(name), _class(result.min, name), _class(result.max, name))
            for result in _results(run)
        ]
        heading = f"Class {name}: {whole(offered)} requests offered"
        labels = tuple(column.label for column in PER_CLASS)
        tables.append(Table(heading, labels, rows_of(run, _columns(PER_CLASS, groups))))
    return tables


def per_length(run: Run) -> Table:
    """Attainment of offered requests per input-length class, with what was refused and the TTFT."""
    lengths = run.input_lengths
    columns = [[part_cell(result, _length(key)) for result in _results(run)] for key in lengths]
    labels = (f"{LENGTHS[key]} ({whole(offered)} offered)" for key, offered in lengths.items())
    marked = [mark_best(cells, more_is_better=True) for cells in columns]
    heading = "By prompt length in tokens: met, of offered (of admitted; refused; TTFT P50 / P95 in s)"
    return Table(heading, tuple(labels), rows_of(run, marked))


def predictions(run: Run) -> list[Table]:
    """How far the predictions of each policy that predicts were off, of TTFT and of TPOT."""
    return [
        *_predicted(run, "TTFT", lambda prediction: prediction.ttft),
        *_predicted(run, "TPOT", lambda prediction: prediction.tpot),
    ]


def share(part: float, total: float) -> float | None:
    """None where there is nothing to have a share of."""
    return part / total if total else None


Valued = tuple[float | None, Cell]
Group = tuple[Figures | None, Figures | None, Figures | None]


ERRORS: tuple[tuple[str, Callable[[PredictionFigures], float | None], bool], ...] = (
    ("median error", lambda p: p.median_ape, True),
    ("P90 error", lambda p: p.p90_ape, True),
    ("median after 500", lambda p: p.median_ape_after_500, True),
    ("P90 after 500", lambda p: p.p90_ape_after_500, True),
    ("at most the predicted P50", lambda p: p.covered_p50, False),
    ("at most the predicted P90", lambda p: p.covered_p90, False),
)
"""Label, where it is, and whether less is better."""


def _predicted(run: Run, figure: str, part: Callable[[Prediction], PredictionFigures]) -> Iterable[Table]:
    errors: dict[str, tuple[PredictionFigures | None, ...]] = {}
    for name in ranked(run):
        result = run.policies[name]
        if result.prediction and part(result.prediction).n:
            errors[name] = tuple(
                part(one.prediction) if one and one.prediction else None
                for one in (result, result.min, result.max)
            )
    if not errors:
        return
    columns = [
        mark_best([_error_cell(value, *one) for one in errors.values()], False if less else None)
        for _, value, less in ERRORS
    ]
    lengths = [key for key in LENGTHS if any(one and key in one.input_lengths for one, *_ in errors.values())]
    for key in lengths:
        cells = [_error_of_length(one, key) for one, *_ in errors.values()]
        columns.append(mark_best(cells, more_is_better=False))
    labels = (*(label for label, *_ in ERRORS), *(LENGTHS[key] for key in lengths))
    rows = tuple(
        Row(title(name), cells, ours=name == OURS)
        for name, cells in zip(errors, zip(*columns, strict=True), strict=True)
    )
    yield Table(
        f"Prediction error of {figure}, of its value; by prompt length in tokens the median (P90) after 500",
        labels,
        rows,
    )


def _error_cell(
    value: Callable[[PredictionFigures], float | None],
    median: PredictionFigures | None,
    low: PredictionFigures | None,
    high: PredictionFigures | None,
) -> Valued:
    figure = median and value(median)
    return figure, Cell(percent(figure), spread(percent, low and value(low), high and value(high)))


def _error_of_length(errors: PredictionFigures | None, key: str) -> Valued:
    of_length = errors.input_lengths.get(key) if errors else None
    if of_length is None or of_length.median_ape_after_500 is None:
        return None, Cell()
    return of_length.median_ape_after_500, Cell(
        percent(of_length.median_ape_after_500), detail=f"({percent(of_length.p90_ape_after_500)})"
    )


def _results(run: Run) -> list[PolicyResult]:
    return [run.policies[name] for name in ranked(run)]


def rows_of(run: Run, columns: Sequence[Sequence[Cell]]) -> tuple[Row, ...]:
    """A row per policy from columns of cells, in the order of `ranked`."""
    by_policy: Iterable[tuple[Cell, ...]] = zip(*columns, strict=True)
    names = ranked(run)
    return tuple(
        Row(title(name), cells, ours=name == OURS) for name, cells in zip(names, by_policy, strict=False)
    )


def _columns(columns: Sequence[Column], groups: Sequence[Group]) -> list[list[Cell]]:
    return [
        mark_best([_cell(column, *group) for group in groups], column.more_is_better) for column in columns
    ]


def _cell(column: Column, median: Figures | None, low: Figures | None, high: Figures | None) -> Valued:
    value = median and column.value(median)
    lowest, highest = low and column.value(low), high and column.value(high)
    return value, Cell(column.written(value), spread(column.written, lowest, highest))


def part_cell(result: PolicyResult, part: Callable[[PolicyFigures], PartFigures | None]) -> Valued:
    """The share met of a part's offered requests, with what else is to be known of it in small."""
    figures = part(result)
    if figures is None:
        return None, Cell()
    low, high = result.min and part(result.min), result.max and part(result.max)
    details = [
        percent(share(figures.rejected, figures.offered)),
        f"{seconds(figures.ttft_s.p50)} / {seconds(figures.ttft_s.p95)}",
    ]
    if figures.attainment_admitted is not None:
        details.insert(0, percent(figures.attainment_admitted))
    return figures.attainment_offered, Cell(
        percent(figures.attainment_offered),
        spread(percent, low and low.attainment_offered, high and high.attainment_offered),
        "; ".join(details),
    )


def _bound_cell(run: Run, column: Column) -> Cell:
    low, high = run.bound.min, run.bound.max
    return Cell(
        column.written(column.bound(run.bound)),
        spread(column.written, low and column.bound(low), high and column.bound(high)),
    )


def mark_best(cells: Sequence[Valued], more_is_better: bool | None) -> list[Cell]:
    """Marks every cell that reads as the best does, unless all do: what reads the same is not ranked."""
    known = [value for value, _ in cells if value is not None]
    if more_is_better is None or len({cell.text for value, cell in cells if value is not None}) < 2:
        return [cell for _, cell in cells]
    target = (max if more_is_better else min)(known)
    text = next(cell.text for value, cell in cells if value == target)
    return [msgspec.structs.replace(cell, best=cell.text == text) for _, cell in cells]


def _class(figures: PolicyFigures | None, name: str) -> Figures | None:
    return figures.classes.get(name) if figures else None


def _length(key: str) -> Callable[[PolicyFigures], PartFigures | None]:
    return lambda figures: figures.input_lengths.get(key)
