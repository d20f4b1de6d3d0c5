"""`tokenfleet lab`: experiments in the simulator."""

import shlex
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from lab.bars.command import bars
from lab.parameters import Finite
from lab.planning.command import plan
from lab.residency.command import residency
from lab.results.command import report
from lab.results.compact import encode
from lab.results.model import OURS, Run
from lab.scenarios.load import load_scenario, names
from lab.scenarios.model import GREATEST_SPEED, LEAST_SPEED
from lab.sim.experiment import Experiment, keep_others, load_trace, run_experiment
from lab.sim.policies import fitting, known
from lab.sim.progress import progress
from lab.sim.tables import tables
from lab.trust.command import trust
from tokenfleet.terminal import output


@click.group()
def lab() -> None:
    """Simulate a fleet under TokenFleet's policies and the published ones, and report."""


lab.add_command(bars)
lab.add_command(plan)
lab.add_command(report)
lab.add_command(residency)
lab.add_command(trust)


@lab.command()
@click.argument("scenario", metavar="SCENARIO")
@click.option("--policy", "-p", "policies", multiple=True, help="Only this one; may be given several times.")
@click.option("--policies", "listed", help="Only these, separated by commas.", metavar="A,B,...")
@click.option("--trace", help="A trace file, or `generated:KIND`, instead of the scenario's.")
@click.option(
    "--speed",
    type=Finite(min=LEAST_SPEED, max=GREATEST_SPEED),
    help="Arrivals come X times faster, instead of the scenario's speed.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Runs per policy.")
@click.option("--requests", type=click.IntRange(min=1), help="The first N requests of the trace only.")
@click.option("--processes", type=click.IntRange(min=1), help="Simulate in so many; default: one per core.")
@click.option("--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file.")
@click.option(
    "--keep",
    "kept",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    is_eager=True,  # --json may name the same file, which it empties
    callback=lambda _, __, path: msgspec.json.decode(path.read_bytes()) if path else None,
    help="Keep the figures of the other policies in this file, of an equal run made before.",
)
@click.option(
    "--plot", "plot_folder", type=click.Path(file_okay=False, path_type=Path), help="Also draw plots there."
)
def run(
    scenario: str,
    policies: tuple[str, ...],
    listed: str | None,
    trace: str | None,
    speed: float | None,
    seeds: int,
    requests: int | None,
    processes: int | None,
    json_file: BinaryIO | None,
    kept: dict[str, Any] | None,
    plot_folder: Path | None,
) -> None:
    """Run SCENARIO, one that comes with the lab or a TOML file, and show how every policy did."""
    loaded = load_scenario(scenario)
    policies = (*policies, *(name.strip() for name in (listed or "").split(",") if name.strip()))
    unknown = [name for name in policies if name not in known()]
    if unknown:
        raise click.BadParameter(
            f"there is no policy {', '.join(unknown)}. Known: {', '.join(known())}", param_hint="--policy"
        )
    chosen = tuple(dict.fromkeys(policies)) or tuple(fitting(several_sites=len(loaded.sites) > 1))
    if plot_folder and OURS not in chosen:
        raise click.UsageError(f"Plots compare with {OURS}: add `--policy {OURS}`.")
    if plot_folder:
        _make(plot_folder)
    experiment = Experiment(
        scenario=loaded,
        policies=chosen,
        seeds=seeds,
        trace=trace,
        speed=speed,
        requests=requests,
        processes=processes,
    )
    offered = len(load_trace(experiment, 0).requests)
    with progress(loaded.name, offered * seeds * len(experiment.policies)) as watch:
        document = run_experiment(experiment, _command_line(scenario, policies, experiment), watch)
    if kept is not None:
        document = keep_others(document, kept)
    _show(document)
    if json_file:
        json_file.write(encode(document))
    if plot_folder:
        _plot(document, plot_folder)


@lab.command()
def scenarios() -> None:
    """List the scenarios that come with the lab."""
    for name in names():
        click.echo(f"{name:14} {load_scenario(name).description}")


def _command_line(scenario: str, policies: tuple[str, ...], experiment: Experiment) -> str:
    """What makes the same run again, wherever it was written to: equal runs are equal bytes."""
    words = ["tokenfleet", "lab", "run", scenario, "--seeds", str(experiment.seeds)]
    for policy in policies:
        words += ["--policy", policy]
    given = {"--trace": experiment.trace, "--speed": experiment.speed, "--requests": experiment.requests}
    for option, value in given.items():
        if value is not None:
            words += [option, f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _show(document: dict[str, Any]) -> None:
    console = output()
    for assumption in document["run"]["assumptions"]:
        console.print(f"assumed: {assumption}", style="dim", highlight=False)
    for table in tables(document):
        console.print(table)


def _make(folder: Path) -> None:
    """Before the runs, which take minutes: a folder that cannot be written should not cost them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{folder}: {error.strerror}", param_hint="--plot") from error


def _plot(document: dict[str, Any], folder: Path) -> None:
    # Matplotlib takes a second to load, and most runs need no plots.
    from lab.results.page import write_page
    from lab.results.plots import write_plots

    finished = msgspec.convert(document, Run, strict=False)
    write_plots(finished, folder)
    page = folder / f"{finished.scenario}.html"
    write_page(finished, page)
    click.echo(f"{page}")
