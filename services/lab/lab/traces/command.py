"""`tokenfleet trace`: what is in a trace file."""

from typing import BinaryIO

import click
import msgspec
from rich.console import Console
from rich.table import Table

from lab.traces.load import GENERATED, open_trace
from lab.traces.model import Trace
from lab.traces.summary import PERCENTS, TraceSummary, summarise


@click.command()
@click.argument("trace", default=GENERATED)
@click.option("--requests", type=click.IntRange(min=1), help="Look at the first N requests only.")
@click.option("--seed", default=0, show_default=True, help="For the generator and for spreading buckets.")
@click.option("--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file.")
def trace(trace: str, requests: int | None, seed: int, json_file: BinaryIO | None) -> None:
    """Summarise TRACE: Mooncake JSON Lines, Azure CSV, or `generated` for the built-in generator."""
    opened = open_trace(trace, requests, seed)
    summary = summarise(opened)
    Console().print(summary_table(opened, summary))
    for assumption in opened.assumptions:
        click.echo(f"  assumed: {assumption}")
    if json_file:
        json_file.write(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")


def summary_table(trace: Trace, summary: TraceSummary) -> Table:
    """The lengths as a table, with the other figures as its title and caption."""
    rate = f"{summary.rate_per_s:.2f} requests/s" if summary.rate_per_s else "no duration"
    table = Table(
        title=f"{trace.source} ({trace.format}): {summary.requests:,} requests in {summary.span_s:,.0f} s, {rate}",
        caption=f"{summary.reusable_share:.1%} of the input tokens reusable with an infinite shared cache",
    )
    table.add_column("tokens")
    for heading in ("mean", *(f"p{percent}" for percent in PERCENTS)):
        table.add_column(heading, justify="right")
    for name, lengths in (("input", summary.input_tokens), ("output", summary.output_tokens)):
        table.add_row(
            name, f"{lengths.mean:,.0f}", *(f"{lengths.percentiles[percent]:,.0f}" for percent in PERCENTS)
        )
    return table
