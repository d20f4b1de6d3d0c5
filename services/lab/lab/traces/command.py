"""`tokenfleet trace`: what is in a trace."""

from typing import BinaryIO

import click
import msgspec
from rich.table import Table

from lab.traces.generated_name import GENERATED
from lab.traces.load import open_trace
from lab.traces.model import Trace
from lab.traces.summary import PERCENTS, TraceSummary, summarise
from tokenfleet.terminal import output

SHOWN_TENANTS = 5


@click.command()
@click.argument("trace", default=GENERATED)
@click.option("--requests", type=click.IntRange(min=1), help="Look at the first N requests only.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="For the generator and for spreading buckets.",
)
@click.option("--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file.")
def trace(trace: str, requests: int | None, seed: int, json_file: BinaryIO | None) -> None:
    """Summarise TRACE.

    It is a file (JSON Lines of Mooncake or Qwen-Bailian, CSV of Azure or BurstGPT), or a name of the built-in
    generator, to be quoted in a shell:

    \b
      generated
      'generated:agent?requests=1000&seed=3'
      'generated:chat=3,long_context=1,batch=2?rate=5&tenants=20'
    """
    opened = open_trace(trace, requests, seed)
    summary = summarise(opened)
    console = output()
    console.print(summary_table(opened, summary))
    if summary.tasks:
        console.print(task_table(summary))
    for line in groups(summary):
        click.echo(f"  {line}")
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


def task_table(summary: TraceSummary) -> Table:
    """A row for each task type."""
    table = Table("task")
    for heading in ("requests", "share", "mean input", "mean output", "with a deadline"):
        table.add_column(heading, justify="right")
    for task, figures in summary.tasks.items():
        table.add_row(
            task,
            f"{figures.requests:,}",
            f"{figures.requests / summary.requests:.1%}",
            f"{figures.mean_input_tokens:,.0f}",
            f"{figures.mean_output_tokens:,.0f}",
            f"{figures.with_deadline:,}",
        )
    return table


def groups(summary: TraceSummary) -> list[str]:
    """What the trace tells of sessions and tenants, in words."""
    lines: list[str] = []
    if summary.sessions:
        lines.append(
            f"{summary.sessions:,} sessions of {summary.requests / summary.sessions:.2f} requests on average, "
            f"at most {summary.longest_session_requests:,}"
        )
    if summary.tenants:
        largest = list(summary.tenants.items())[:SHOWN_TENANTS]
        shares = ", ".join(f"{tenant} {count / summary.requests:.1%}" for tenant, count in largest)
        more = (
            f" and {len(summary.tenants) - SHOWN_TENANTS} more"
            if len(summary.tenants) > SHOWN_TENANTS
            else ""
        )
        lines.append(f"{len(summary.tenants):,} tenants: {shares}{more}")
    return lines
