"""The `tokenfleet` command. Each subcommand is imported only when it is used, or listed by --help."""

import sys

import click

from console.lazy_group import LazyGroup
from tokenfleet.errors import TokenFleetError

GROUP = "tokenfleet.commands"

OWN_COMMANDS = {
    "up": "console.commands.up:up",
    "run": "console.commands.run:run",
    "status": "console.commands.status:status",
    "explain": "console.commands.explain:explain_command",
    "links": "console.commands.links:links",
    "queue": "console.commands.queue:queue",
    "plan": "console.commands.plan:plan",
    "tenant": "console.commands.tenant:tenant",
    "audit": "console.commands.audit:audit",
    "policy": "console.commands.policy:policy",
    "rollout": "console.commands.rollout:rollout",
    "contracts": "console.commands.contracts:contracts",
}


@click.command(
    cls=LazyGroup,
    entry_point_group=GROUP,
    own_commands=OWN_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  tokenfleet up                              start everything on this machine
  tokenfleet up --time-scale 5 --engines 4   emulated engines five times as fast
  tokenfleet status                          what runs, and how it is
  tokenfleet explain REQUEST_ID              why it went where it went
  tokenfleet policy set routing=round_robin  change the fleet while it runs
  tokenfleet queue                           what waits, and for whom
  tokenfleet plan                            how many replicas each pool should have, and why
""",
)
@click.version_option(package_name="tokenfleet-console", prog_name="tokenfleet")
def cli() -> None:
    """TokenFleet: a scheduler that makes a fleet of LLM engines deliver more goodput."""


def main() -> None:
    """Run the command line; a TokenFleet error is one message on standard error and status 1."""
    try:
        cli(prog_name="tokenfleet")
    except TokenFleetError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
