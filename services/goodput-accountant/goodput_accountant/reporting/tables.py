"""A report as tables for people."""

from collections.abc import Callable, Iterator, Mapping

import msgspec
from rich.console import RenderableType
from rich.table import Table

from goodput_accountant.policy.totals import CAUSES
from tokenfleet.contracts.ledger import Report, Summary, WasteFigures

ABSENT = "-"
SIDE_BY_SIDE = 6
"""More groups than this stand below each other, with fewer figures."""


class Figure(msgspec.Struct, frozen=True):
    """A name, where the value is and how it is written."""

    label: str
    value: Callable[[Summary], float | None]
    written: str = "{:,.0f}"
    always: bool = True
    """Otherwise only where some group has it."""

    def of(self, summary: Summary) -> str:
        value = self.value(summary)
        return ABSENT if value is None else self.written.format(value)


def _missed(term: str) -> Callable[[Summary], float | None]:
    return lambda summary: summary.missed_terms.get(term, 0)


FIGURES = (
    Figure("offered", lambda s: s.offered),
    Figure("completed", lambda s: s.completed),
    Figure("rejected", lambda s: s.rejected),
    Figure("timed out", lambda s: s.timed_out),
    Figure("cancelled", lambda s: s.cancelled),
    Figure("failed", lambda s: s.failed),
    Figure("lost", lambda s: s.lost, always=False),
    Figure("met, of offered", lambda s: s.attainment_offered, "{:.1%}"),
    Figure("met, of admitted", lambda s: s.attainment_admitted, "{:.1%}"),
    Figure("missed", lambda s: s.missed),
    Figure("  TTFT over its limit", _missed("ttft"), always=False),
    Figure("  TPOT over its limit", _missed("tpot"), always=False),
    Figure("  e2e over its limit", _missed("e2e"), always=False),
    Figure("without objective", lambda s: s.undeclared, always=False),
    Figure("  their output tokens", lambda s: s.undeclared_output_tokens, always=False),
    Figure("degraded", lambda s: s.degraded, always=False),
    Figure("goodput tok/s", lambda s: s.goodput_tokens_per_s),
    Figure("output tok/s", lambda s: s.output_tokens_per_s),
    Figure("good tokens", lambda s: s.good_output_tokens),
    Figure("wasted tokens", lambda s: s.wasted_tokens),
    Figure("prefix reuse", lambda s: s.prefix_reuse, "{:.1%}"),
    Figure("GPU-s", lambda s: s.gpu_s, "{:,.1f}", always=False),
    Figure("  requests without", lambda s: s.gpu_unknown, always=False),
    Figure("cost", lambda s: s.cost, "{:,.2f}", always=False),
    Figure("  per 1M good tokens", lambda s: s.cost_per_million_good_tokens, "{:,.2f}", always=False),
    Figure("TTFT P50 s", lambda s: s.ttft_s.p50, "{:.2f}"),
    Figure("TTFT P95 s", lambda s: s.ttft_s.p95, "{:.2f}"),
    Figure("TTFT P99 s", lambda s: s.ttft_s.p99, "{:.2f}"),
    Figure("TPOT P50 s", lambda s: s.tpot_s.p50, "{:.3f}"),
    Figure("TPOT P95 s", lambda s: s.tpot_s.p95, "{:.3f}"),
    Figure("TPOT P99 s", lambda s: s.tpot_s.p99, "{:.3f}"),
    Figure("e2e P50 s", lambda s: s.e2e_s.p50, "{:.2f}"),
    Figure("e2e P95 s", lambda s: s.e2e_s.p95, "{:.2f}"),
)
OF_A_GROUP = (
    Figure("offered", lambda s: s.offered),
    Figure("met, of offered", lambda s: s.attainment_offered, "{:.1%}"),
    Figure("missed", lambda s: s.missed),
    Figure("lost", lambda s: s.lost, always=False),
    Figure("goodput tok/s", lambda s: s.goodput_tokens_per_s, "{:,.1f}"),
    Figure("good tokens", lambda s: s.good_output_tokens),
    Figure("wasted tokens", lambda s: s.wasted_tokens),
    Figure("wasted GPU-s", lambda s: sum(each.gpu_s for each in s.waste.values()), "{:,.1f}", always=False),
    Figure("GPU-s", lambda s: s.gpu_s, "{:,.1f}", always=False),
    Figure("cost", lambda s: s.cost, "{:,.2f}", always=False),
    Figure("TTFT P95 s", lambda s: s.ttft_s.p95, "{:.2f}"),
    Figure("TPOT P95 s", lambda s: s.tpot_s.p95, "{:.3f}"),
)


def report_tables(report: Report) -> Iterator[RenderableType]:
    """All figures of all requests and of each group, then what was wasted by which cause."""
    side_by_side = len(report.groups) <= SIDE_BY_SIDE
    yield _figures(report, report.groups if side_by_side else {})
    if report.total.waste:
        yield _waste(report.total)
    if not side_by_side:
        yield _groups(report)
    yield from _notes(report)


def top_tables(report: Report) -> Iterator[RenderableType]:
    """The groups, one below the other."""
    yield _groups(report)
    yield from _notes(report)


def _figures(report: Report, groups: Mapping[str, Summary]) -> Table:
    table = Table(title=f"Ledger: {report.total.duration_s:,.1f} engine seconds", title_justify="left")
    table.add_column("", no_wrap=True)
    columns = {"all": report.total, **groups}
    for name in columns:
        table.add_column(name, justify="right")
    for figure in _worth_showing(FIGURES, columns):
        table.add_row(figure.label, *map(figure.of, columns.values()))
    for name, error in (("TTFT", report.prediction.ttft), ("TPOT", report.prediction.tpot)):
        if error.n:
            off = f"{error.median_ape:.1%} / {error.p90_ape:.1%}"
            table.add_row(f"{name} predicted, off by (median / P90)", off)
    return table


def _waste(total: Summary) -> Table:
    table = Table(title="Wasted, by cause", title_justify="left")
    table.add_column("")
    for name in ("requests", "prefill tokens", "decode tokens", "GPU-s"):
        table.add_column(name, justify="right")
    causes = {cause: total.waste[cause] for cause in CAUSES if cause in total.waste}
    for cause, each in causes.items():
        table.add_row(cause.replace("_", " "), f"{each.requests:,}", *_wasted(each))
    # Without a number of requests: one with several attempts may be in two causes.
    whole = WasteFigures(
        requests=0,
        prefill_tokens=sum(each.prefill_tokens for each in causes.values()),
        decode_tokens=sum(each.decode_tokens for each in causes.values()),
        gpu_s=sum(each.gpu_s for each in causes.values()),
    )
    table.add_row("all", "", *_wasted(whole))
    return table


def _wasted(figures: WasteFigures) -> tuple[str, str, str]:
    return f"{figures.prefill_tokens:,}", f"{figures.decode_tokens:,}", f"{figures.gpu_s:,.1f}"


def _groups(report: Report) -> Table:
    table = Table(
        title=f"By {report.group_by}: {report.total.duration_s:,.1f} engine seconds", title_justify="left"
    )
    table.add_column(report.group_by, overflow="fold")
    rows = {**report.groups, "all": report.total}
    shown = _worth_showing(OF_A_GROUP, rows)
    for figure in shown:
        table.add_column(figure.label, justify="right")
    table.add_column("most waste by")
    for name, summary in report.groups.items():
        table.add_row(name, *(figure.of(summary) for figure in shown), _worst_cause(summary))
    table.add_section()
    table.add_row("all", *(figure.of(report.total) for figure in shown), _worst_cause(report.total))
    return table


def _notes(report: Report) -> Iterator[str]:
    if report.groups_left_out:
        yield f"{report.groups_left_out:,} more not shown; `all` has them."
    if report.total.approximate:
        yield "Percentiles are those of hourly histograms, within 2 %."
    if report.total.gpu_unknown:
        yield f"Not in GPU-s: {report.total.gpu_unknown:,} of the requests, whose engine is not known."


def _worth_showing(figures: tuple[Figure, ...], groups: Mapping[str, Summary]) -> list[Figure]:
    return [each for each in figures if each.always or any(each.value(group) for group in groups.values())]


def _worst_cause(summary: Summary) -> str:
    tokens = {cause: each.prefill_tokens + each.decode_tokens for cause, each in summary.waste.items()}
    return max(tokens, key=lambda cause: tokens[cause]).replace("_", " ") if any(tokens.values()) else ABSENT
