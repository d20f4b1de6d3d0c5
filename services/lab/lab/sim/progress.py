"""How far simulations are, on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lab.sim.parallel import Watch


@contextmanager
def progress(label: str, total: int) -> Iterator[Watch]:
    """A bar on standard error."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("[dim]{task.fields[doing]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,  # No thread of its own: the runs are forked from this process.
    )
    with bar:
        task = bar.add_task(label, total=total, doing="")
        yield lambda doing, ended: bar.update(task, completed=ended, doing=doing, refresh=True)
