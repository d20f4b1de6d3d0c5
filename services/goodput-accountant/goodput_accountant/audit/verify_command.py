"""`tokenfleet audit verify`."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from goodput_accountant.audit.options import (
    Stages,
    check_order,
    from_option,
    ledger_connection,
    moment,
    operator_bus,
    state_dir_option,
    to_option,
)
from goodput_accountant.audit.verify import Verdict, Window, verify_files, verify_stream
from goodput_accountant.policy.chain_check import Break
from goodput_accountant.policy.comparison import Difference
from tokenfleet.errors import TokenFleetError
from tokenfleet.logs import quiet_logs
from tokenfleet.terminal import output

DIFFERENT = 1
IMPOSSIBLE = 3
"""Exit statuses; 2 is click's, for a wrong option."""

EXAMPLES = """\b
Examples:
  tokenfleet audit verify
  tokenfleet audit verify --from 24h --json
  tokenfleet audit verify --from 2026-05-04 --to 2026-05-05 --events kept/events-2026-05-04.jsonl.gz

\b
Exit status:
  0  the ledger is what the events make of it, and its chains are whole
  1  it is not: every difference is printed
  2  a wrong option
  3  it could not be verified (NATS or Postgres away, a damaged file, stopped by Ctrl-C)
"""

MEANINGS = {
    "missing": "an event has no row in the ledger",
    "unknown": "a row of the ledger has no event",
    "changed": "the row is not what its event makes of it",
}


@click.command("verify", epilog=EXAMPLES)
@from_option(
    "Requests submitted from here on: ISO 8601 (UTC unless it says otherwise), or a duration ago. Default: all."
)
@to_option("Until here. Default: now.")
@click.option(
    "--events",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A file of `tokenfleet audit export` to read instead of the stream; may be given several times.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for events that the accountant has yet to book.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@state_dir_option
def verify(
    from_ns: int | None,
    to_ns: int | None,
    files: tuple[Path, ...],
    wait_s: float,
    as_json: bool,
    state_dir: Path,
) -> None:
    """Rebuild the ledger from its events and compare it row by row, and check the hash chain of each day.

    Rows are rebuilt by the rules that the accountant books by, into a scratch table that is gone afterwards. Days are
    checked whole.
    """
    check_order(from_ns, to_ns)
    window = Window(from_ns=_microseconds(from_ns), to_ns=_microseconds(to_ns))
    try:
        verdict = asyncio.run(_verify(window, files, wait_s, state_dir))
    except TokenFleetError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(IMPOSSIBLE)
    except KeyboardInterrupt:
        click.echo("Stopped before anything was proved; the scratch table is gone.", err=True)
        sys.exit(IMPOSSIBLE)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_as_json(verdict))).decode())
    else:
        show(verdict, output())
    sys.exit(0 if verdict.clean else DIFFERENT)


async def _verify(window: Window, files: Sequence[Path], wait_s: float, state_dir: Path) -> Verdict:
    quiet_logs()
    with Stages() as progress:
        async with ledger_connection(state_dir) as connection:
            if files:
                return await verify_files(connection, files, window, progress)
            async with operator_bus(state_dir) as bus:
                return await verify_stream(connection, bus, window, wait_s, progress)


def show(verdict: Verdict, console: Console) -> None:
    """Every difference and break, what must be known of them, and one line that sums up."""
    if verdict.differences:
        console.print(differences_table(verdict.differences))
    if verdict.breaks:
        console.print(breaks_table(verdict.breaks))
    if verdict.unbookable:
        console.print(
            f"{verdict.unbookable:,} events cannot be booked (they are in the stream DEAD_LETTERS), for example:",
            highlight=False,
        )
        for each in verdict.unbookable_examples:
            console.print(f"  number {each.stored_sequence:,}: {each.reason}", highlight=False, markup=False)
    for note in verdict.notes:
        console.print(f"Note: {note}.", highlight=False, markup=False)
    console.print(summary(verdict), highlight=False, markup=False)


def differences_table(differences: Sequence[Difference]) -> Table:
    """One line for each row that is missing or unknown, and one for each column that differs."""
    table = Table(title=f"Rows that differ: {len(differences):,}", title_justify="left")
    for heading in ("submitted", "request", "event", "difference", "from its event", "in the ledger"):
        table.add_column(heading, overflow="fold")
    for each in differences:
        row = (moment(each.submitted_ns), each.request_id, each.event_id)
        if not each.columns:
            table.add_row(*row, MEANINGS[each.kind], "", "")
        for column, values in each.columns.items():
            table.add_row(*row, column, _text(values.should_be), _text(values.is_))
    return table


def breaks_table(breaks: Sequence[Break]) -> Table:
    """Where chains break, and what that means."""
    table = Table(title=f"Breaks of the hash chains: {len(breaks):,}", title_justify="left")
    table.add_column("day", no_wrap=True)
    table.add_column("row", justify="right")
    table.add_column("request", overflow="fold")
    table.add_column("")
    table.add_column("what it means")
    for each in breaks:
        kind = each.kind.replace("_", " ")
        table.add_row(each.day, f"{each.sequence:,}", each.request_id or "", kind, each.meaning)
    return table


def summary(verdict: Verdict) -> str:
    """What was looked at and what came of it."""
    read = f"{verdict.events:,} events read, {verdict.rows:,} rows in the chains of days: {verdict.days:,}"
    if verdict.clean:
        return f"The ledger is what the events make of it: {read}, no difference."
    counts = [
        f"{sum(each.kind == kind for each in verdict.differences):,} {named}"
        for kind, named in (("missing", "missing"), ("unknown", "without an event"), ("changed", "changed"))
    ]
    return (
        f"THE LEDGER DIFFERS: {read}; rows: {', '.join(counts)}; breaks of a chain: {len(verdict.breaks):,}."
    )


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {"clean": verdict.clean, **msgspec.to_builtins(verdict, builtin_types=(bytes,))}


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _microseconds(unix_ns: int | None) -> int | None:
    """The ledger's times are at that resolution."""
    return None if unix_ns is None else unix_ns // 1_000 * 1_000
