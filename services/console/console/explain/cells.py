"""How tables of an explanation look."""

from rich.table import Table

ABSENT = "-"
CHOSEN = "→"


def new_table(title: str) -> Table:
    return Table(title=title or None, title_justify="left", box=None, pad_edge=False, title_style="italic")


def seconds(value: float | None, digits: int = 3) -> str:
    return ABSENT if value is None else f"{value:,.{digits}f}"


def count(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"
