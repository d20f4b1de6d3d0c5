"""`tokenfleet lab trust`: the simulator beside a running engine, and beside another project's simulator."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lab.errors import TrustError
from lab.parameters import POSITIVE
from lab.traces.load import GENERATED, open_trace
from lab.traces.model import Trace
from lab.trust.agreement import agreement_table
from lab.trust.dynamo_compare import KV_ROUTER, ROUND_ROBIN, Comparison, SpeedResult
from lab.trust.dynamo_engine import WORKERS
from lab.trust.dynamo_replay import install
from lab.trust.dynamo_report import as_json, round_robin_table, routers_table, timing_table
from lab.trust.engine_compare import EngineTrust, compare_engine
from tokenfleet.terminal import output

LIGHT_SPEED = 1.0

json_option = click.option(
    "--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file."
)


@click.group()
def trust() -> None:
    """Check the simulator against a running engine and against NVIDIA Dynamo's offline replay."""


@trust.command("engine")
@click.argument("trace", default=GENERATED)
@click.option("--requests", type=click.IntRange(min=2), default=100, show_default=True, help="The first N.")
@click.option(
    "--speed",
    type=POSITIVE,
    default=0.17,
    show_default=True,
    help="Arrivals come X times faster; 0.17 leaves one engine its share of what eight get at 1.35.",
)
@click.option(
    "--time-scale", type=POSITIVE, default=2.0, show_default=True, help="How much faster than real time."
)
@click.option("--seed", default=0, show_default=True, help="For the generator and for spreading arrivals.")
@json_option
def engine(
    trace: str, requests: int, speed: float, time_scale: float, seed: int, json_file: BinaryIO | None
) -> None:
    """Send TRACE to one emulated engine over HTTP, and simulate the same requests.

    Exits 1 unless TTFT, TPOT and prefix reuse agree within 5 %.
    """
    opened = open_trace(trace, requests, seed)
    progress = Progress(
        TextColumn("engine in real time"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with progress:
        task = progress.add_task("", total=len(opened.requests))
        found = asyncio.run(compare_engine(opened, speed, time_scale, lambda: progress.advance(task)))
    _assumed(opened)
    title = f"{opened.source}: {found.requests} requests, one engine at {time_scale:g}x real time"
    output().print(agreement_table(title, "engine", "simulator", found.agreement))
    _write(json_file, _engine_json(opened, found))
    if not found.agreement.agrees:
        raise TrustError(_engine_verdict(found))


@trust.command("dynamo")
@click.argument("trace", required=False)
@click.option("--install", "wanted", is_flag=True, help="Install the replay first, into .tools/dynamo.")
@click.option("--requests", type=click.IntRange(min=2), help="The first N requests only.")
@click.option(
    "--speed",
    "speeds",
    type=POSITIVE,
    multiple=True,
    help="Arrivals come X times faster; may be repeated. Default: 1, and where queues form under round robin "
    "and under the KV router.",
)
@click.option("--workers", type=click.IntRange(min=1), default=WORKERS, show_default=True)
@click.option("--seed", default=0, show_default=True, help="For spreading arrivals and breaking ties.")
@json_option
def dynamo(
    trace: str | None,
    wanted: bool,
    requests: int | None,
    speeds: tuple[float, ...],
    workers: int,
    seed: int,
    json_file: BinaryIO | None,
) -> None:
    """Replay TRACE in NVIDIA Dynamo's simulator and in this one: same requests, same engine.

    Without TRACE only installs. Exits 1 unless round robin agrees within 10 % at every speed.
    """
    if wanted:
        click.echo("installing NVIDIA Dynamo's replay, about 250 MB ...", err=True)
        install()
    if trace is None:
        if not wanted:
            raise click.UsageError("Give a TRACE to compare on, or --install")
        return
    opened = open_trace(trace, requests, seed)
    _assumed(opened)
    console = output()
    results: list[SpeedResult] = []
    with tempfile.TemporaryDirectory(prefix="tokenfleet-dynamo-") as folder:
        comparison = Comparison(opened, Path(folder), workers=workers, seed=seed, on_step=_step)
        timing = comparison.timing(LIGHT_SPEED)
        console.print(timing_table(timing))
        for speed in speeds or _default_speeds(comparison):
            result = comparison.at_speed(speed)
            results.append(result)
            console.print(round_robin_table(result))
            console.print(routers_table(result))
    _write(json_file, {"trace": opened.source, **as_json(results, timing)})
    apart = [f"{result.speed:g}x" for result in results if not result.agreement.agrees]
    if apart:
        raise TrustError(f"The simulators disagree at {', '.join(apart)}: see the red rows")


def _default_speeds(comparison: Comparison) -> list[float]:
    queueing = {comparison.queueing_speed(router) for router in (ROUND_ROBIN, KV_ROUTER)}
    return sorted({LIGHT_SPEED, *queueing})


def _engine_verdict(found: EngineTrust) -> str:
    if found.timely:
        return f"The engine and the simulator differ by more than {found.agreement.bar:.0%}: see the red rows"
    return (
        f"No verdict: this machine was late by {found.disturbance_s * 1000:.0f} ms of engine time, too much to "
        "tell. Try again when it is idle, or with a lower --time-scale"
    )


def _engine_json(trace: Trace, found: EngineTrust) -> dict[str, Any]:
    return {
        "trace": trace.source,
        "requests": found.requests,
        "time_scale": found.time_scale,
        "disturbance_s": found.disturbance_s,
        "timely": found.timely,
        "agreement": found.agreement.as_json(),
        "engine": msgspec.to_builtins(found.measured),
        "simulator": msgspec.to_builtins(found.simulated),
    }


def _assumed(trace: Trace) -> None:
    for assumption in trace.assumptions:
        click.echo(f"assumed: {assumption}")


def _step(what: str) -> None:
    click.echo(f"{what} ...", err=True)


def _write(file: BinaryIO | None, content: dict[str, Any]) -> None:
    if file:
        file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
