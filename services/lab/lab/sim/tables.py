"""A run's document as tables."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from lab.sim.lengths import LENGTHS

ABSENT = "-"


class Column(NamedTuple):
    """A heading, where the figure is and how it is written."""

    heading: str
    value: Callable[[dict[str, Any]], float | None]
    written: str


VALUE = (
    Column("goodput", lambda figures: figures["goodput_tokens_per_s"], "{:,.0f}"),
    Column("of output", lambda figures: figures.get("output_tokens_per_s"), "{:,.0f}"),
    Column("met", lambda figures: figures["attainment_offered"], "{:.1%}"),
    Column("admitted", lambda figures: figures.get("attainment_admitted"), "{:.1%}"),
    Column("refused", lambda figures: figures.get("rejected"), "{:,.0f}"),
)
LATENCY = (
    Column("TTFT P50", lambda figures: figures["ttft_s"]["p50"], "{:.2f}"),
    Column("P95", lambda figures: figures["ttft_s"]["p95"], "{:.2f}"),
    Column("P99", lambda figures: figures["ttft_s"]["p99"], "{:.2f}"),
    Column("TPOT P95", lambda figures: figures.get("tpot_s", {}).get("p95"), "{:.3f}"),
    Column("reused", lambda figures: figures["prefix_reuse"], "{:.1%}"),
)
SPECIAL = (
    Column("long", lambda figures: figures.get("starved_s"), "{:.1f}"),
    Column("in time", lambda figures: figures.get("batch", {}).get("deadlines_met"), "{:.1%}"),
    Column("batch", lambda figures: figures.get("batch", {}).get("output_tokens_per_s"), "{:,.0f}"),
    Column("work", lambda figures: figures.get("batch", {}).get("work_per_s"), "{:.2f}"),
    Column("others'", lambda figures: figures.get("batch", {}).get("others_work_per_s"), "{:.2f}"),
    Column("others", lambda figures: figures.get("others", {}).get("attainment_offered"), "{:.1%}"),
    Column("their P95", lambda figures: figures.get("others", {}).get("ttft_s", {}).get("p95"), "{:.2f}"),
    Column("settled", lambda figures: figures.get("steadiness", {}).get("settled_s"), "{:.0f}"),
    Column("turned back", lambda figures: figures.get("steadiness", {}).get("turned_back"), "{:.0f}"),
)
"""Shown where some policy has them."""


def tables(document: dict[str, Any]) -> Iterable[Table]:
    """Every policy beside the bound; then attainment and refusals per class and per input length."""
    run = document["run"]
    heading = f"{document['scenario']}: {run['requests']:,} requests at {run['speed']:g}x"
    if run["seeds"] > 1:
        heading += f", medians of {run['seeds']} seeds"
    yield _overview(f"{heading}; tokens/s, met share of offered and of admitted", VALUE, document)
    yield _overview("virtual seconds, and prompt tokens found in a cache", LATENCY, document)
    policies = document["policies"].values()
    special = [column for column in SPECIAL if any(column.value(one) for one in policies)]
    if special:
        yield _overview(
            "longest wait of a long context; batch lines in time, tokens/s, their and others' work; who does not flood; steering",
            special,
            document,
        )
    yield _attainment("met, of offered (and refused), per class", document["policies"], "classes")
    yield _attainment(
        "met, of offered (and refused), per input length",
        document["policies"],
        "input_lengths",
        tuple(LENGTHS),
    )


def _overview(heading: str, columns: Sequence[Column], document: dict[str, Any]) -> Table:
    table = Table(title=heading, title_justify="left")
    table.add_column("policy", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, figures in document["policies"].items():
        table.add_row(name, *(_number(column.value(figures), column.written) for column in columns))
    table.add_section()
    table.add_row("bound", *(_number(column.value(document["bound"]), column.written) for column in columns))
    return table


def _attainment(
    heading: str, policies: dict[str, dict[str, Any]], key: str, groups: tuple[str, ...] = ()
) -> Table:
    names = groups or tuple(sorted({group for figures in policies.values() for group in figures[key]}))
    table = Table(title=heading, title_justify="left")
    table.add_column("policy", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for name, figures in policies.items():
        cells: list[str] = []
        for group in names:
            of_group = figures[key].get(group)
            if of_group is None or not of_group["offered"]:
                cells.append(ABSENT)
                continue
            met = _number(of_group["attainment_offered"], "{:.1%}")
            refused = of_group["rejected"] / of_group["offered"]
            cells.append(f"{met} ({refused:.1%})" if refused else met)
        table.add_row(name, *cells)
    return table


def _number(value: float | None, written: str) -> str:
    return ABSENT if value is None else written.format(value)
