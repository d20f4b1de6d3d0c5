"""`tokenfleet policy`: how the fleet decides, changed while it runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from console.assignments import complete, differences
from console.commands.common import json_option, on_bus, print_json, shown, state_dir_option
from console.operator import apply, live_policy, reset_policy, set_policy
from tokenfleet.contracts.policy import Policy, problems
from tokenfleet.terminal import output


@click.group()
def policy() -> None:
    """Show and change the live policy. Running services follow within a second."""


@policy.command(epilog="Example: tokenfleet policy show")
@state_dir_option
def show(state_dir: Path) -> None:
    """Print every setting of the live policy as JSON."""
    live = on_bus(state_dir, live_policy)
    print_json(complete(live))
    if found := problems(live):
        click.echo(f"Running services refuse this and keep what they had. {' '.join(found)}", err=True)


@policy.command(
    "set",
    epilog="""\b
Examples:
  tokenfleet policy set routing=round_robin admission=false
  tokenfleet policy set objectives.interactive.ttft_s=2 objectives.interactive.percentile=0.99
  tokenfleet policy set shares.batch.floor=0.05 queue.requests=1000
""",
)
@click.argument("assignments", metavar="KEY=VALUE...", nargs=-1, required=True)
@state_dir_option
def set_(assignments: tuple[str, ...], state_dir: Path) -> None:
    """Change settings; all of them or, when one is wrong, none."""
    print_json(complete(on_bus(state_dir, lambda bus: set_policy(bus, assignments))))


@policy.command(
    epilog="""\b
Examples:
  tokenfleet policy reset shares wait_share_of_slack
  tokenfleet policy reset --yes
"""
)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask before all settings are put back.")
@state_dir_option
def reset(keys: tuple[str, ...], yes: bool, state_dir: Path) -> None:
    """Put settings, or groups of them, back to their defaults; without KEY, all of them."""
    if not keys and not yes:
        click.confirm("Put all settings back to their defaults?", abort=True)
    print_json(complete(on_bus(state_dir, lambda bus: reset_policy(bus, keys))))


@policy.command(
    epilog="""\b
Examples:
  tokenfleet policy diff                          how the live policy differs from the defaults
  tokenfleet policy diff shares.batch.floor=0.05  what setting this would change; changes nothing
"""
)
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1)
@json_option
@state_dir_option
def diff(assignments: tuple[str, ...], as_json: bool, state_dir: Path) -> None:
    """Show how the live policy differs from the defaults, or what assignments would change in it."""
    live = on_bus(state_dir, live_policy)
    if assignments:
        columns, changed = ("live", "would be"), differences(live, apply(live, assignments))
    else:
        columns, changed = ("default", "live"), differences(Policy(), live)
    if as_json:
        names = [column.replace(" ", "_") for column in columns]
        print_json({key: dict(zip(names, values, strict=True)) for key, values in changed.items()})
    elif not changed:
        click.echo("No difference.")
    else:
        output().print(_table(columns, changed))


def _table(columns: tuple[str, str], changed: Mapping[str, tuple[Any, Any]]) -> Table:
    table = Table("setting", *columns)
    for key, values in changed.items():
        table.add_row(key, *map(shown, values))
    return table
