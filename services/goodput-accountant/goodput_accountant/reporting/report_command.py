"""`tokenfleet ledger report` and `tokenfleet ledger top`."""

import asyncio
import sys
from pathlib import Path
from typing import Any, Literal, cast, get_args

import click
import msgspec

from goodput_accountant.audit.options import state_dir_option
from goodput_accountant.reporting.flat import write_csv
from goodput_accountant.reporting.selection import (
    ANSWER_TIMEOUT_S,
    NOTHING,
    Selection,
    ledger_bus,
    selecting,
    told,
)
from goodput_accountant.reporting.tables import report_tables, top_tables
from tokenfleet import subjects
from tokenfleet.contracts.ledger import GroupBy, Report, ReportRequest, SortBy
from tokenfleet.terminal import output

Format = Literal["table", "json", "csv"]

REPORT_EXAMPLES = """\b
Examples:
  tokenfleet ledger report --last 1h                                    per class
  tokenfleet ledger report --by tenant --from 2026-05-04 --to 2026-05-05
  tokenfleet ledger report --run bench-7 --format json                  one replay, all figures
  tokenfleet ledger report --by pool --last 7d --format csv > pools.csv
\b
Cost is what the GPU-seconds of the requests cost by the prices of now, without the time GPUs are idle. The prices are
the policy's: tokenfleet policy set 'gpu_hour_prices={"llama-70b@1": 9.8, "*": 2.5}'
"""
TOP_EXAMPLES = """\b
Examples:
  tokenfleet ledger top --last 1h                              tenants that waste the most tokens
  tokenfleet ledger top --by instance --sort misses --last 1d  instances with the most broken promises
  tokenfleet ledger top --by class --sort cost --last 7d
"""


def by_option(default: GroupBy) -> Any:
    choices = click.Choice(get_args(GroupBy))
    return click.option(
        "--by", type=choices, default=default, show_default=True, help="What requests are grouped by."
    )


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(get_args(Format)),
    default="table",
    show_default=True,
    help="JSON and CSV have every figure of every group.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")


@click.command(epilog=REPORT_EXAMPLES)
@by_option("class")
@selecting
@format_option
@json_option
@state_dir_option
def report(selection: Selection, by: str, form: str, as_json: bool, state_dir: Path) -> None:
    """Goodput, attainment, latencies, waste and cost of the requests chosen, in all and per group.

    Requests without any term in their objective are counted apart: they are neither met nor missed.
    """
    request = ReportRequest(**msgspec.structs.asdict(selection), group_by=cast(GroupBy, by))
    with told():
        answer = asyncio.run(_ask(request, state_dir))
    _show(answer, cast(Format, "json" if as_json else form), top=False)


@click.command(epilog=TOP_EXAMPLES)
@by_option("tenant")
@click.option(
    "--sort",
    type=click.Choice(get_args(SortBy)),
    default="waste",
    show_default=True,
    help="The groups with the most of it come first: wasted tokens, missed requests, good tokens, GPU-seconds or cost.",
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=10, show_default=True, help="So many groups.")
@selecting
@format_option
@json_option
@state_dir_option
def top(
    selection: Selection, by: str, sort: str, limit: int, form: str, as_json: bool, state_dir: Path
) -> None:
    """What to look at first: the groups of requests that waste, miss or cost the most."""
    request = ReportRequest(
        **msgspec.structs.asdict(selection),
        group_by=cast(GroupBy, by),
        sort=cast(SortBy, sort),
        limit=limit,
    )
    with told():
        answer = asyncio.run(_ask(request, state_dir))
    _show(answer, cast(Format, "json" if as_json else form), top=True)


async def _ask(request: ReportRequest, state_dir: Path) -> Report:
    async with ledger_bus(state_dir) as (bus, site):
        return await bus.request(subjects.ledger_report(site), request, Report, timeout_s=ANSWER_TIMEOUT_S)


def _show(report: Report, form: Format, *, top: bool) -> None:
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    elif form == "csv":
        write_csv(report, sys.stdout)
    elif report.total.ledger_rows == 0:
        click.echo(NOTHING)
    else:
        console = output()
        for each in top_tables(report) if top else report_tables(report):
            console.print(each)
