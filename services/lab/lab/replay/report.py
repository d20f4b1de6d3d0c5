"""The ledger's report as JSON and as tables."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from rich.table import Table

from tokenfleet.contracts.ledger import Report, Summary


class Figure(msgspec.Struct, frozen=True):
    """One line of a table: its name, where the value is and how it is written."""

    label: str
    value: Callable[[Summary], float | None]
    written: str
    compared: bool = True
    """Whether a ratio between two runs says anything."""


FIGURES = (
    Figure("requests offered", lambda s: s.offered, "{:,.0f}", compared=False),
    Figure("completed", lambda s: s.completed, "{:,.0f}"),
    Figure("rejected", lambda s: s.rejected, "{:,.0f}", compared=False),
    Figure("timed out", lambda s: s.timed_out, "{:,.0f}", compared=False),
    Figure("cancelled", lambda s: s.cancelled, "{:,.0f}", compared=False),
    Figure("failed", lambda s: s.failed, "{:,.0f}", compared=False),
    Figure("met, of offered", lambda s: s.attainment_offered, "{:.1%}"),
    Figure("met, of admitted", lambda s: s.attainment_admitted, "{:.1%}"),
    Figure("goodput, tokens/s", lambda s: s.goodput_tokens_per_s, "{:,.0f}"),
    Figure("all output, tokens/s", lambda s: s.output_tokens_per_s, "{:,.0f}"),
    Figure("TTFT P50, s", lambda s: s.ttft_s.p50, "{:.2f}"),
    Figure("TTFT P95, s", lambda s: s.ttft_s.p95, "{:.2f}"),
    Figure("TTFT P99, s", lambda s: s.ttft_s.p99, "{:.2f}"),
    Figure("TPOT P50, ms", lambda s: _milliseconds(s.tpot_s.p50), "{:.1f}"),
    Figure("TPOT P95, ms", lambda s: _milliseconds(s.tpot_s.p95), "{:.1f}"),
    Figure("TPOT P99, ms", lambda s: _milliseconds(s.tpot_s.p99), "{:.1f}"),
    Figure("prefix tokens reused", lambda s: s.prefix_reuse, "{:.1%}"),
)
ABSENT = "-"


def report_json(report: Report) -> dict[str, Any]:
    """The figures over all requests, the same per class under `classes`, and how far predictions were off.

    Times are engine seconds.
    """
    return {
        **msgspec.to_builtins(report.total),
        "prediction": msgspec.to_builtins(report.prediction),
        "classes": {name: msgspec.to_builtins(summary) for name, summary in report.classes.items()},
    }


def report_table(title: str, report: Report) -> Table:
    """All figures over all requests and per class."""
    table = _table(title)
    groups = {"all": report.total, **report.classes}
    for name in groups:
        table.add_column(name, justify="right")
    for figure in FIGURES:
        table.add_row(figure.label, *(_written(figure, summary) for summary in groups.values()))
    for name, error in (("TTFT", report.prediction.ttft), ("TPOT", report.prediction.tpot)):
        if error.n:
            table.add_row(
                f"{name} predicted, off by (median / P90)", f"{error.median_ape:.1%} / {error.p90_ape:.1%}"
            )
    return table


def compare(title: str, reports: Mapping[str, Report]) -> Table:
    """Runs side by side, over all requests; of exactly two runs also the first's ratio to the second."""
    table = _table(title)
    for name in reports:
        table.add_column(name, justify="right")
    pair = len(reports) == 2
    if pair:
        table.add_column("ratio", justify="right")
    totals = [report.total for report in reports.values()]
    for figure in FIGURES:
        cells = [_written(figure, total) for total in totals]
        if pair:
            cells.append(_ratio(figure, *totals))
        table.add_row(figure.label, *cells)
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", caption="Times are engine time.", caption_justify="left")
    table.add_column("", no_wrap=True)
    return table


def _written(figure: Figure, summary: Summary) -> str:
    value = figure.value(summary)
    return ABSENT if value is None else figure.written.format(value)


def _ratio(figure: Figure, ours: Summary, theirs: Summary) -> str:
    value, base = figure.value(ours), figure.value(theirs)
    if not figure.compared or value is None or not base:
        return ABSENT
    return f"{value / base:.2f}x"


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
