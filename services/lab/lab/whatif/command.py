"""`tokenfleet audit whatif`: what another policy or fleet would have made of a window of recorded traffic."""

import asyncio
import time
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from lab.sim.progress import progress
from lab.whatif.comparison import Comparison
from lab.whatif.recording import Recording, Window
from lab.whatif.resizing import Size
from lab.whatif.source import read_files, read_streams
from lab.whatif.table import changes, table, verdict
from lab.whatif.whatif import Asked, what_if
from tokenfleet.durations import duration_s
from tokenfleet.logs import quiet_logs
from tokenfleet.running_stack import default_state_dir, operator_settings
from tokenfleet.terminal import output
from tokenfleet.time_options import Moment

NOT_TRUSTED = 3
"""Exit status."""

EXAMPLES = """\b
Examples:
  tokenfleet audit whatif --from 2h --policy stricter.toml
  tokenfleet audit whatif --from 2026-05-04T09:00Z --to 2026-05-04T10:00Z --instances 6 --seeds 10
  tokenfleet audit whatif --from 30m --policy flood.json --instances llama-70b@v1=12 --json whatif.json
  tokenfleet audit whatif --from 2026-01-01 --to 2026-01-02 --events january.jsonl.gz
  echo 'misses_allowed = 0.2' > stricter.toml      (what it does not say stays as it was live)

\b
Exit status:
  0  the re-run's goodput is within 5 % of the recorded
  1  there is nothing to run, or it cannot be read
  2  a wrong option
  3  it is not: the what-if is printed and cannot be trusted
"""


class Span(click.ParamType):
    """A duration in ns; 0 is one too."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value in (0, "0"):
            return 0
        try:
            return round(duration_s(str(value)) * 1e9)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class PoolSize(click.ParamType):
    """`6`, or `llama-70b@v1=6` where there are several pools."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Size:
        pool, _, count = str(value).rpartition("=")
        if not count.isdecimal() or int(count) < 1:
            self.fail(f"{value!r} is not a number of instances such as 6, or POOL=6", param, ctx)
        return Size(instances=int(count), pool=pool or None)


@click.command(epilog=EXAMPLES)
@click.option(
    "--from",
    "from_ns",
    type=Moment(),
    required=True,
    metavar="TIME",
    help="Requests submitted from here on: ISO 8601 (UTC unless it says otherwise), or a duration ago.",
)
@click.option("--to", "to_ns", type=Moment(), metavar="TIME", help="Until here. Default: now.")
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML or JSON with the settings that differ (`tokenfleet policy show` lists all).",
)
@click.option(
    "--instances",
    "sizes",
    type=PoolSize(),
    multiple=True,
    metavar="[POOL=]N",
    help="Another number of instances; the pool need be said only where there are several.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Runs per column.")
@click.option(
    "--events",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Read a file of `tokenfleet audit export` instead of the stack's streams; may be given several times.",
)
@click.option(
    "--warm-up",
    "warm_up_ns",
    type=Span(),
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="Also run what came so long before, so that caches and queues are as they were; 0: nothing.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_state_dir,
    show_default="TOKENFLEET_STATE_DIR, or .tokenfleet",
    help="Folder of the stack whose streams are read.",
)
@click.option("--processes", type=click.IntRange(min=1), help="Simulate in so many; default: one per core.")
@click.option("--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file.")
def whatif(
    from_ns: int,
    to_ns: int | None,
    policy: Path | None,
    sizes: tuple[Size, ...],
    seeds: int,
    events: tuple[Path, ...],
    warm_up_ns: int,
    state_dir: Path,
    processes: int | None,
    json_file: BinaryIO | None,
) -> None:
    """Run recorded traffic again in the simulator under another policy or on another fleet.

    The policy that was live is run again first: unless that gives the recorded goodput within 5 %, the what-if says
    that it cannot be trusted, and why. Without --policy and --instances, that is all.
    """
    to_ns = time.time_ns() if to_ns is None else to_ns
    if from_ns >= to_ns:
        raise click.UsageError("--from is not before --to: the window is empty.")
    window = Window(from_ns=from_ns, to_ns=to_ns, warm_up_ns=warm_up_ns)
    recording = _read(window, events, state_dir)
    asked = Asked(policy=policy, sizes=sizes, seeds=seeds, processes=processes)
    comparison = what_if(recording, asked, lambda total: progress("whatif", total))
    show(comparison)
    if json_file:
        json_file.write(msgspec.json.format(msgspec.json.encode(comparison)) + b"\n")
    if not comparison.trust.trusted:
        click.get_current_context().exit(NOT_TRUSTED)


def show(comparison: Comparison) -> None:
    """Everything, on standard output."""
    console = output()
    window = comparison.window
    lines = [f"Window {window['from']} to {window['to']}, with {comparison.company:,} requests around it."]
    if changed := list(changes(comparison)):
        lines += ["What if:", *changed]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(table(comparison))
    for line in verdict(comparison):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _read(window: Window, files: tuple[Path, ...], state_dir: Path) -> Recording:
    quiet_logs()
    stderr = Console(stderr=True)
    bar = Progress(
        TextColumn("reading events"),
        BarColumn(),
        console=stderr,
        transient=True,
        auto_refresh=False,  # no thread: the runs are forked from this process
        disable=not stderr.is_terminal,
    )
    task = bar.add_task("", total=1.0)

    def done(share: float) -> None:
        bar.update(task, completed=share, refresh=True)

    with bar:
        if files:
            return read_files(files, window, done)
        return asyncio.run(read_streams(operator_settings(state_dir), window, done))
