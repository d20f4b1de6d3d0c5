"""Where commands print their tables."""

from rich.console import Console

WIDE = 170
"""Columns of a table when the output is no terminal."""


def output() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table where it is none."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
