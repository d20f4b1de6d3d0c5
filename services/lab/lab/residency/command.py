"""`tokenfleet lab residency`: a million requests, every fault, and not one where it may not run."""

from typing import BinaryIO

import click
import msgspec
from rich.table import Table

from lab.residency.trial import Trial, added, trial
from lab.sim.parallel import run_all
from lab.sim.progress import progress
from tokenfleet.terminal import output

PER_WORLD = 20_000
"""Requests: about a minute of virtual time each."""

EXAMPLES = """\b
Examples:
  tokenfleet lab residency                          (a million requests: most of an hour)
  tokenfleet lab residency --requests 20000         (one world: a minute)
  tokenfleet lab residency --first-seed 50 --json residency.json
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--requests", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="In all worlds."
)
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the worlds.")
@click.option("--processes", type=click.IntRange(min=1), help="Simulate in so many; default: one per core.")
@click.option("--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file.")
def residency(requests: int, first_seed: int, processes: int | None, json_file: BinaryIO | None) -> None:
    """Simulate many requests bound to regions and sites while everything fails, and count those that leave.

    Five sites; links are cut, what sites say arrives up to 15 seconds late, FleetMinds restart knowing neither tenants nor
    sites, clocks are off by days and run wrong, engines die, and a version is rolled out, the old one drained and taken back.
    Ends with status 1 if one request was placed or sent where its tenant does not allow it.
    """
    sizes = [min(PER_WORLD, requests - start) for start in range(0, requests, PER_WORLD)]
    tasks = [(first_seed + number, size) for number, size in enumerate(sizes)]
    with progress("residency", requests) as watch:
        trials = run_all(lambda task, progressed: trial(*task, progressed), tasks, watch, processes)
    total = added(trials.values())
    output().print(_table(total, len(tasks)))
    broken = sorted(
        seed for (seed, _), one in trials.items() if one.placed_wrongly or one.residency_violations
    )
    if broken:
        click.echo(f"In the worlds of these seeds requests left: {', '.join(map(str, broken))}")
    if json_file:
        json_file.write(msgspec.json.encode(total))
    if broken:
        raise SystemExit(1)


def _table(total: Trial, worlds: int) -> Table:
    table = Table(title=f"{worlds:,} worlds", title_justify="left", show_header=False)
    for name, count in msgspec.structs.asdict(total).items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    return table
