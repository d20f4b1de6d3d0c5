"""The `tokenfleet` command. Each subcommand is imported only when it is used, or listed by --help."""

import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

import click

from tokenfleet.errors import TokenFleetError

GROUP = "tokenfleet.commands"

OWN_COMMANDS = {
    "up": "console.commands.up:up",
    "run": "console.commands.run:run",
    "status": "console.commands.status:status",
    "explain": "console.commands.explain:explain_command",
    "queue": "console.commands.queue:queue",
    "tenant": "console.commands.tenant:tenant",
    "policy": "console.commands.policy:policy",
    "contracts": "console.commands.contracts:contracts",
}


class LazyGroup(click.Group):
    """Finds our own commands by name, and those of other packages by their entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        others = sorted(set(entry_points(group=GROUP).names) - OWN_COMMANDS.keys())
        return [*OWN_COMMANDS, *others]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if target := OWN_COMMANDS.get(cmd_name):
            module, _, attribute = target.partition(":")
            return getattr(import_module(module), attribute)
        for entry in entry_points(group=GROUP, name=cmd_name):
            return _load(entry)
        return None


def _load(entry: EntryPoint) -> click.Command:
    """A command of another package; one that cannot be imported says so when used, and breaks no other."""
    try:
        return entry.load()
    except Exception as error:
        message = f"`{entry.name}` cannot be loaded from {entry.value}: {type(error).__name__}: {error}"

        @click.command(entry.name, help=message, context_settings={"ignore_unknown_options": True})
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        def broken(arguments: tuple[str, ...]) -> None:
            raise click.ClickException(message)

        return broken


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  tokenfleet up                              start everything on this machine
  tokenfleet up --time-scale 5 --engines 4   emulated engines five times as fast
  tokenfleet status                          what runs, and how it is
  tokenfleet explain REQUEST_ID              why it went where it went
  tokenfleet policy set routing=round_robin  change the fleet while it runs
  tokenfleet queue                           what waits, and for whom
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
