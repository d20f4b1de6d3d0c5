"""`tokenfleet ledger retention`."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from pydantic import Field
from rich.table import Table

from goodput_accountant.audit.options import ledger_connection, state_dir_option
from goodput_accountant.retention import DayKept, days_kept
from goodput_accountant.settings import KEEP_DAYS
from tokenfleet.errors import TokenFleetError
from tokenfleet.settings import Settings, load
from tokenfleet.terminal import output

EXAMPLES = """\b
Examples:
  tokenfleet ledger retention
  tokenfleet ledger retention --keep-days 90
  tokenfleet ledger retention --json
"""


class _KeepSettings(Settings):
    ledger_keep_days: int = Field(default=KEEP_DAYS, ge=0)


@click.command("retention", epilog=EXAMPLES)
@click.option(
    "--keep-days",
    type=click.IntRange(min=0),
    metavar="DAYS",
    help="As if TOKENFLEET_LEDGER_KEEP_DAYS were this; 0: for ever. Default: what it is here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@state_dir_option
def retention(keep_days: int | None, as_json: bool, state_dir: Path) -> None:
    """How much of the ledger is kept day by day, and which rows the accountant drops next.

    Drops nothing. Of a day that is dropped the roll-ups stay, and the end of its hash chain.
    """
    try:
        keep_days = load(_KeepSettings).ledger_keep_days if keep_days is None else keep_days
        days = asyncio.run(_days(keep_days, state_dir))
    except TokenFleetError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(days)).decode() + "\n")
    elif not days:
        click.echo("The ledger has no rows yet.")
    else:
        output().print(days_table(days, keep_days))


async def _days(keep_days: int, state_dir: Path) -> list[DayKept]:
    async with ledger_connection(state_dir) as connection:
        return await days_kept(connection, datetime.now(UTC).date(), keep_days)


def days_table(days: Sequence[DayKept], keep_days: int) -> Table:
    """One line for each day, and one for all."""
    rule = f"rows are kept for {keep_days:,} days" if keep_days else "rows are kept for ever"
    table = Table(title=f"Ledger by day of submission (UTC): {rule}", title_justify="left")
    for heading in ("day", "requests", "rows there", "rolled up", "MB"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for day in days:
        table.add_row(day.day.isoformat(), *_figures([day]), day.fate)
    due = [day for day in days if day.fate == "due"]
    table.add_section()
    table.add_row("all", *_figures(days), "")
    table.add_row("due", *_figures(due), "dropped by the next sweep" if due else "")
    return table


def _figures(days: Sequence[DayKept]) -> tuple[str, ...]:
    rows = sum(day.rows for day in days)
    there = sum(day.rows - day.dropped_rows for day in days)
    rolled = sum(day.rolled_rows for day in days)
    return (f"{rows:,}", f"{there:,}", f"{rolled:,}", f"{sum(day.bytes for day in days) / 1e6:,.1f}")
