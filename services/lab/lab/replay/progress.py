"""The progress bar of a replay."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lab.replay.counters import Counters

REFRESH_S = 0.25
OnStart = Callable[[Counters], None]


@asynccontextmanager
async def progress_bar(label: str) -> AsyncIterator[OnStart]:
    """Show a bar on standard error, from the moment the yielded function is given the counters."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("[dim]{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        refresh_per_second=1 / REFRESH_S,
    )
    updates: list[asyncio.Task[None]] = []

    def on_start(counters: Counters) -> None:
        bar = progress.add_task(label, total=counters.offered, detail="")
        updates.append(asyncio.create_task(_follow(progress, bar, counters)))

    with progress:
        try:
            yield on_start
        finally:
            for task in updates:
                task.cancel()
            await asyncio.gather(*updates, return_exceptions=True)


async def _follow(progress: Progress, bar: TaskID, counters: Counters) -> None:
    try:
        while True:
            _show(progress, bar, counters)
            await asyncio.sleep(REFRESH_S)
    finally:
        _show(progress, bar, counters)


def _show(progress: Progress, bar: TaskID, counters: Counters) -> None:
    if counters.done < counters.offered:
        detail = f"{counters.in_flight} in flight, {counters.rejected} rejected, {counters.errors} errors"
    else:
        detail = f"{counters.rows} ledger rows, {counters.rejected} rejected, {counters.errors} errors"
    progress.update(bar, completed=counters.done, detail=detail)
