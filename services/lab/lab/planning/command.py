"""`tokenfleet lab plan`: what it is worth to scale by forecasts of all sites, beside what people do today."""

from typing import Any, BinaryIO

import click
import msgspec

from lab.parameters import POSITIVE, Finite
from lab.planning.compare import Comparison, compare
from lab.planning.simulate import PLAN
from lab.planning.table import comparison, forecast_table
from lab.planning.trace_errors import trace_errors
from lab.planning.world import DAY_STEPS, STEP_S
from lab.sim.progress import progress
from lab.traces.load import open_trace
from tokenfleet.terminal import output

EXAMPLES = """\b
Examples:
  tokenfleet lab plan
  tokenfleet lab plan --days 14 --weekend-dip 0.4 --json plan.json
  tokenfleet lab plan --warm-up 900                 (large models, loaded from afar)
  tokenfleet lab plan --trace conversation.jsonl    (only how far forecasts of it are off)
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--days", type=Finite(min=0.05, max=60), default=3, show_default=True, help="That are simulated."
)
@click.option("--seeds", type=click.IntRange(min=1), default=2, show_default=True, help="Runs per policy.")
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.IntRange(min=1, max=6 * 3_600),
    default=300,
    show_default=True,
    help="Seconds until a replica is ready; rounded up to minutes.",
)
@click.option(
    "--weekend-dip",
    type=Finite(min=0, max=1, max_open=True),
    default=0,
    help="Share less on days 6 and 7 of each week.",
)
@click.option("--trace", help="A trace file: judge forecasts of its arrivals, and scale nothing.")
@click.option(
    "--interval", "interval_s", type=POSITIVE, default=10, show_default=True, help="Of --trace, in seconds."
)
@click.option("--processes", type=click.IntRange(min=1), help="Simulate in so many; default: one per core.")
@click.option("--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file.")
def plan(
    days: float,
    seeds: int,
    warm_up_s: int,
    weekend_dip: float,
    trace: str | None,
    interval_s: float,
    processes: int | None,
    json_file: BinaryIO | None,
) -> None:
    """Scale three sites over days by FleetMind's long loop, and by other ways, on the same work.

    Two models are asked for at each site, whose days are a third of a day apart, with noise and bursts that nothing foretells.
    Replicas stay at the first day's peak, follow each pool's own load as KEDA does (without and with some spare), or are planned
    for all sites by forecasts; the same plan with the demand known beforehand shows what better forecasts could bring. All sizes are assumed: compare the
    rows, not the figures with those of a fleet.
    """
    if trace is not None:
        document = _forecasts_of(trace, interval_s)
    else:
        asked = Comparison(
            steps=max(1, round(days * DAY_STEPS)),
            seeds=seeds,
            warm_up_steps=-(-warm_up_s // round(STEP_S)),
            weekend_dip=weekend_dip,
        )
        document = _compare(asked, processes)
    if json_file:
        json_file.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def _forecasts_of(trace: str, interval_s: float) -> dict[str, Any]:
    opened = open_trace(trace)
    errors = trace_errors(opened, interval_s)
    rows = {f"{ahead * interval_s:g} s": one for ahead, one in errors.items()}
    console = output()
    for assumption in (*opened.assumptions, "every prompt is computed whole, on the reference engine"):
        console.print(f"assumed: {assumption}", style="dim", highlight=False)
    console.print(forecast_table(rows, f"{opened.source}, intervals of {interval_s:g} s"))
    return {"trace": opened.source, "interval_s": interval_s, "forecast": rows}


def _compare(asked: Comparison, processes: int | None) -> dict[str, Any]:
    with progress("plan", asked.total_steps) as watch:
        compared = compare(asked, watch, processes)
    days = asked.steps / DAY_STEPS
    console = output()
    heading = f"{days:g} days, means of {asked.seeds} seeds, ready {asked.warm_up_steps * STEP_S:g} s after the decision"
    console.print(comparison(compared.means, heading))
    forecast = compared.means[PLAN].forecast
    if forecast is not None:
        ahead_s = (asked.warm_up_steps + 1) * STEP_S
        console.print(forecast_table({f"{ahead_s:g} s": forecast}, "the plan's forecasts, at their horizon"))
    return {"asked": asked, "means": compared.means, "seeds": compared.by_seed}
