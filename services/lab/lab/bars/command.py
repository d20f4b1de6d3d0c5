"""`tokenfleet lab bars`: whether TokenFleet is as good as it promises itself."""

from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec
from rich.table import Table

from lab.bars.admission_table import ADMISSION_BARS
from lab.bars.measure import Measuring, measure, needs_of
from lab.bars.model import OURS, WITH_ADMISSION, Measured, Verdict
from lab.bars.site_table import SITE_BARS
from lab.bars.table import BARS
from lab.sim.progress import progress
from tokenfleet.terminal import output

EVERY_BAR = (*BARS, *ADMISSION_BARS, *SITE_BARS)
TITLES = {OURS: "TokenFleet without admission", WITH_ADMISSION: "TokenFleet"}

EXAMPLES = """\b
Examples:
  tokenfleet lab bars
  tokenfleet lab bars --scenario routing --scenario hetero --seeds 3
  tokenfleet lab bars --scenario overload18 --scenario mixed --recorded
  tokenfleet lab bars --fresh --json bars.json
  tokenfleet lab bars --scenario routing --requests 2000    (a quick look)
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--scenario",
    "chosen",
    multiple=True,
    type=click.Choice(list(dict.fromkeys(bar.scenario for bar in EVERY_BAR))),
    help="Only its bars; may be given several times.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="Runs per policy. Default: as many as the peers' runs made before have, or 2.",
)
@click.option("--fresh", is_flag=True, help="Run the peers too, even where their figures are there.")
@click.option(
    "--recorded",
    is_flag=True,
    help="Judge TokenFleet by the figures there too, and run only what is not there.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("docs/runs"),
    show_default=True,
    help="Where runs made before are: peers do not change, so their figures are taken from there.",
)
@click.option("--trace", help="A trace file, or `generated:KIND`, instead of the scenarios'.")
@click.option("--requests", type=click.IntRange(min=1), help="The first N requests of the traces only.")
@click.option("--processes", type=click.IntRange(min=1), help="Simulate in so many; default: one per core.")
@click.option("--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file.")
def bars(
    chosen: tuple[str, ...],
    seeds: int | None,
    fresh: bool,
    recorded: bool,
    runs: Path,
    trace: str | None,
    requests: int | None,
    processes: int | None,
    json_file: BinaryIO | None,
) -> None:
    """Run what TokenFleet's bars are about, of routing without admission, of admission and of several sites, and show
    which it clears.

    Ends with status 1 when it misses one. Bars that are only shown do not count.
    """
    judged = [bar for bar in EVERY_BAR if not chosen or bar.scenario in chosen]
    how = Measuring(
        runs=runs,
        fresh=fresh,
        recorded=recorded,
        seeds=seeds,
        requests=requests,
        trace=trace,
        processes=processes,
    )
    measurements = {name: measure(name, needed, how, progress) for name, needed in needs_of(judged).items()}
    verdicts = [verdict for bar in judged for verdict in bar.judge(measurements)]
    console = output()
    for policy, heading in TITLES.items():
        if about := [verdict for verdict in verdicts if verdict.policy == policy]:
            console.print(verdict_table(heading, about))
    for source in dict.fromkeys(verdict.source for verdict in verdicts):
        console.print(f"{source.name}: {source.text}", style="dim", highlight=False)
    kept = [name for name, measured in measurements.items() if measured.kept]
    if kept:
        console.print(f"Peers' figures from {runs}: {', '.join(kept)}. --fresh runs them.", style="dim")
    missed = [verdict for verdict in verdicts if verdict.counted and not verdict.passed]
    counted = sum(verdict.counted for verdict in verdicts)
    console.print(f"{counted - len(missed)} of {counted} bars cleared.")
    if json_file:
        json_file.write(msgspec.json.encode(_document(verdicts, measurements)))
    if missed:
        raise SystemExit(1)


def verdict_table(heading: str, verdicts: list[Verdict]) -> Table:
    """One row per bar."""
    table = Table(title=heading, title_justify="left")
    for heading in ("scenario", "bar", "needed", "measured", "", "from"):
        table.add_column(heading)
    last = None
    for verdict in sorted(verdicts, key=lambda one: _first_bar_of(one.scenario)):
        if last is not None and verdict.scenario != last:
            table.add_section()
        name = verdict.scenario if verdict.scenario != last else ""
        table.add_row(
            name, verdict.bar, verdict.needed, verdict.measured, _mark(verdict), verdict.source.name
        )
        last = verdict.scenario
    return table


def _mark(verdict: Verdict) -> str:
    if not verdict.counted:
        return "[dim]would pass[/]" if verdict.passed else "[dim]would fail[/]"
    return "[green]pass[/]" if verdict.passed else "[bold red]FAIL[/]"


def _first_bar_of(scenario: str) -> int:
    return next(number for number, bar in enumerate(EVERY_BAR) if bar.scenario == scenario)


def _document(verdicts: list[Verdict], measurements: dict[str, Measured]) -> dict[str, Any]:
    """The verdicts and the figures they come from, without what is only drawn."""
    figures: dict[str, Any] = {}
    for scenario, measured in measurements.items():
        policies = msgspec.to_builtins(measured.policies)
        for result in policies.values():
            result.pop("series", None)
        figures[scenario] = {"kept": sorted(measured.kept), "policies": policies}
    return {"bars": msgspec.to_builtins(verdicts), "runs": figures}
