"""`tokenfleet audit trace`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from goodput_accountant.audit.options import Stages, ledger_connection, moment, operator_bus, state_dir_option
from goodput_accountant.audit.trace import Booked, Found, Story, events_for, events_in_files, rows_of, story
from tokenfleet.errors import TokenFleetError, UnavailableError
from tokenfleet.logs import quiet_logs
from tokenfleet.recorded import Recorded
from tokenfleet.running_stack import operator_settings
from tokenfleet.terminal import output
from tokenfleet.time_options import Duration

EXAMPLES = """\b
Examples:
  tokenfleet audit trace my-request-7
  tokenfleet audit trace my-request-7 --json
  tokenfleet audit trace my-request-7 --events kept/events-2026-05-04T09.jsonl.gz
"""


@click.command("trace", epilog=EXAMPLES)
@click.argument("request_id")
@click.option(
    "--since",
    type=Duration(),
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How far back to search the events for what the ledger does not have: 30s, 15m, 1h, 7d.",
)
@click.option(
    "--events",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A file of `tokenfleet audit export` to read instead of the stream; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@state_dir_option
def trace(request_id: str, since: float, files: tuple[Path, ...], as_json: bool, state_dir: Path) -> None:
    """Tell REQUEST_ID's whole story in order: each event, who said it and what it means, and what the ledger made of it.

    REQUEST_ID is the x-request-id of the answer, or the one the client sent; of several requests with the client's id,
    the latest is told. Requests under way, refused, retried or lost have a story, too.
    """
    told = asyncio.run(_trace(request_id, since, files, state_dir))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        show(told, output())


async def _trace(wanted: str, since_s: float, files: Sequence[Path], state_dir: Path) -> Story:
    quiet_logs()
    notes: list[str] = []
    found: list[Found] = []
    others: tuple[str, ...] = ()
    try:
        async with ledger_connection(state_dir) as connection:
            found, others = await rows_of(connection, wanted)
    except TokenFleetError as error:
        notes.append(f"the ledger cannot be asked: {error}")
    events, more = await _events(wanted, found, since_s, files, state_dir, notes)
    return story(events, found, others or more, notes, time_scale=_time_scale(state_dir))


async def _events(
    wanted: str,
    found: Sequence[Found],
    since_s: float,
    files: Sequence[Path],
    state_dir: Path,
    notes: list[str],
) -> tuple[list[Recorded], tuple[str, ...]]:
    with Stages() as progress:
        if files:
            progress("reading the files")
            return events_in_files(files, wanted, found)
        try:
            async with operator_bus(state_dir) as bus:
                site = operator_settings(state_dir).site
                return await events_for(
                    bus,
                    site,
                    wanted,
                    found,
                    since_s,
                    lambda done: progress("searching the recorded events", done),
                )
        except UnavailableError as error:
            if not found:
                raise
            notes.append(f"the stream cannot be read: {error}")
            return [], ()


def _time_scale(state_dir: Path) -> float:
    """For a request that has not ended; its end says it itself."""
    try:
        return operator_settings(state_dir).time_scale
    except TokenFleetError:
        return 1.0


def show(told: Story, console: Console) -> None:
    """The story, line by line."""
    client = f" (client's id: {told.client_request_id})" if told.client_request_id else ""
    begins = f", from {moment(told.first_ns)}" if told.first_ns else ""
    console.print(f"Request {told.request_id}{client}{begins}", highlight=False, markup=False, style="bold")
    if told.lines:
        console.print(_lines(told))
    for booked in told.booked:
        console.print(_booked(booked), highlight=False, markup=False)
    for note in told.notes:
        console.print(f"Note: {note}.", highlight=False, markup=False)
    if told.others:
        console.print(f"Others with this id, latest first: {', '.join(told.others)}.", highlight=False)


def _lines(told: Story) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("engine s", justify="right")
    table.add_column("wall s", justify="right")
    table.add_column("try", justify="right")
    table.add_column("who", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("what it says", overflow="fold")
    for line in told.lines:
        times = (f"{line.after_s:.3f}", f"{line.wall_s:.3f}", str(line.attempt))
        table.add_row(*times, line.who, line.event, line.says)
    return table


def _booked(booked: Booked) -> str:
    corrected = "" if booked.counts else " (corrected by a later row)"
    of = f" of {booked.rows:,}" if booked.rows is not None else ""
    follows = {
        True: "its hash follows from the row before",
        False: "ITS HASH DOES NOT FOLLOW from the row before: `tokenfleet audit verify` says where the chain breaks",
        None: "the row before it is not there",
    }[booked.follows]
    rules = {
        True: "It is what the rules make of its event.",
        False: "IT IS NOT what the rules make of its event: `tokenfleet audit verify` says what differs.",
        None: "Its event is not there to compare it with.",
    }[booked.as_rules_say]
    return (
        f"Ledger{corrected}: {booked.outcome.replace('_', ' ')}, {booked.verdict}. {rules}\n"
        f"Chain of {booked.day}: row {booked.sequence:,}{of}, hash {booked.chain_hash[:16]}; {follows}."
    )
