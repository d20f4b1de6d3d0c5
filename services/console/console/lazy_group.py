"""A command group whose subcommands are imported only when they are used, or listed by --help."""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click


class LazyGroup(click.Group):
    """Finds our own commands by name, and those of other packages by their entry points."""

    def __init__(
        self,
        *arguments: Any,
        entry_point_group: str,
        own_commands: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """As `click.Group`.

        Args:
            arguments: of `click.Group`.
            entry_point_group: the group of other packages' entry points that are commands of this one.
            own_commands: `module:attribute` by name; they are listed first.
            options: of `click.Group`.
        """
        super().__init__(*arguments, **options)
        self.entry_point_group = entry_point_group
        self.own_commands = own_commands or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        others = sorted(set(entry_points(group=self.entry_point_group).names) - self.own_commands.keys())
        return [*self.own_commands, *others]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if target := self.own_commands.get(cmd_name):
            module, _, attribute = target.partition(":")
            return getattr(import_module(module), attribute)
        for entry in entry_points(group=self.entry_point_group, name=cmd_name):
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
