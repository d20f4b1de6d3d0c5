"""`tokenfleet policy`: how the fleet decides, changed while it runs."""

import asyncio
from pathlib import Path

import click
import msgspec

from console.commands.common import connected, state_dir_option
from console.operator import live_policy, set_policy
from tokenfleet.contracts.policy import Policy


@click.group()
def policy() -> None:
    """Show and change the live policy. Running services follow within a second."""


@policy.command()
@state_dir_option
def show(state_dir: Path) -> None:
    """Print the policy in force as JSON."""
    _print(asyncio.run(_show(state_dir)))


async def _show(state_dir: Path) -> Policy:
    async with connected(state_dir) as bus:
        return await live_policy(bus)


@policy.command(
    "set",
    epilog="""\b
Examples:
  tokenfleet policy set routing=round_robin admission=false
  tokenfleet policy set objectives.interactive.ttft_s=2 objectives.batch.e2e_s=600
""",
)
@click.argument("assignments", metavar="KEY=VALUE...", nargs=-1, required=True)
@state_dir_option
def set_(assignments: tuple[str, ...], state_dir: Path) -> None:
    """Change settings; all of them or, when one is wrong, none."""
    _print(asyncio.run(_set(assignments, state_dir)))


async def _set(assignments: tuple[str, ...], state_dir: Path) -> Policy:
    async with connected(state_dir) as bus:
        return await set_policy(bus, assignments)


def _print(value: Policy) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
