"""`tokenfleet explain`: why a request went where it went, from the recorded events."""

import asyncio
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from console.commands.common import connected, json_option, print_json, state_dir_option
from console.explain.explanation import Explanation, explain
from console.explain.rendering import render
from tokenfleet.request_story import find_events
from tokenfleet.running_stack import operator_settings
from tokenfleet.terminal import output
from tokenfleet.time_options import Duration


@click.command("explain", epilog="Example: tokenfleet explain my-request-7 --json")
@click.argument("request_id")
@click.option(
    "--since",
    type=Duration(),
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How far back to search the events for what the ledger does not have: 30s, 15m, 1h, 7d.",
)
@json_option
@state_dir_option
def explain_command(request_id: str, since: float, as_json: bool, state_dir: Path) -> None:
    """Show how REQUEST_ID was decided: the candidates, the reason, and what came of it.

    REQUEST_ID is the x-request-id of the answer, or the one the client sent; of several requests with the
    client's id, the latest is shown.
    """
    explanation, others = asyncio.run(_explain(request_id, since, state_dir))
    if as_json:
        print_json(explanation)
        return
    console = output()
    console.print(render(explanation), highlight=False)
    if others:
        console.print(f"\nOthers with this id, latest first: {', '.join(others)}.", highlight=False)


async def _explain(request_id: str, since_s: float, state_dir: Path) -> tuple[Explanation, tuple[str, ...]]:
    settings = operator_settings(state_dir)
    stderr = Console(stderr=True)
    bar = Progress(
        TextColumn("searching the recorded events"),
        BarColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )
    task = bar.add_task("", total=1.0)
    async with connected(state_dir) as bus:
        with bar:
            events, others = await find_events(
                bus,
                settings.site,
                request_id,
                since_s,
                lambda done: bar.update(task, completed=done),
            )
    return explain(events, settings.time_scale), others
