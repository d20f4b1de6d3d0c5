"""`tokenfleet replay`: a trace through the HTTP API, and the ledger's report of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

import click
import msgspec
import uvloop

from lab.parameters import POSITIVE
from lab.replay.options import POLICIES, ReplayOptions
from lab.replay.own_stack import own_stack
from lab.replay.progress import progress_bar
from lab.replay.report import report_table
from lab.replay.run import ReplayResult, run_replay
from lab.replay.stack import Stack, given_stack, running_stack
from lab.traces.load import open_trace
from lab.traces.model import Trace
from tokenfleet.contracts.policy import Routing
from tokenfleet.settings import Settings, load
from tokenfleet.terminal import output


@click.command()
@click.argument("trace")
@click.option("--requests", type=click.IntRange(min=1), help="Replay the first N requests only.")
@click.option("--speed", type=POSITIVE, default=1.0, show_default=True, help="Arrivals come X times faster.")
@click.option("--time-scale", type=POSITIVE, help="How much faster than real time the emulated engines run.")
@click.option(
    "--api-url", help="The API of a fleet elsewhere. Default: the running stack, or one of its own."
)
@click.option("--api-key", envvar="TOKENFLEET_API_KEY", help="Default: the running stack's own key.")
@click.option("--policy", type=click.Choice(POLICIES), help="Routing during the run; restored afterwards.")
@click.option("--model", help="Default: the first model that the API offers.")
@click.option(
    "--engines", type=click.IntRange(min=1), default=8, show_default=True, help="Of a stack of its own."
)
@click.option(
    "--timeout", type=POSITIVE, default=900.0, show_default=True, help="Engine seconds per request."
)
@click.option("--seed", default=0, show_default=True, help="For the generator and for spreading arrivals.")
@click.option("--json", "json_file", type=click.File("wb", lazy=False), help="Also write JSON to a file.")
def replay(
    trace: str,
    requests: int | None,
    speed: float,
    time_scale: float | None,
    api_url: str | None,
    api_key: str | None,
    policy: Routing | None,
    model: str | None,
    engines: int,
    timeout: float,
    seed: int,
    json_file: BinaryIO | None,
) -> None:
    """Replay TRACE (a Mooncake or Azure file, or `generated`) and report from the ledger.

    Exits 1 unless every request has exactly one ledger row.
    """
    options = ReplayOptions(speed=speed, policy=policy, model=model, timeout_s=timeout)

    async def main() -> None:
        opened = open_trace(trace, requests, seed)
        async with _stack(api_url, api_key, time_scale, engines) as stack:
            result = await replay_with_progress(stack, opened, options, label="replay")
            show(result)
            if json_file:
                json_file.write(msgspec.json.format(msgspec.json.encode(result.as_json())) + b"\n")
            result.check()

    uvloop.run(main())


async def replay_with_progress(
    stack: Stack, trace: Trace, options: ReplayOptions, *, label: str
) -> ReplayResult:
    """A replay with its progress shown on standard error."""
    async with progress_bar(label) as on_start:
        return await run_replay(stack, trace, options, on_start=on_start)


def show(result: ReplayResult) -> None:
    """The report, and what was assumed to get it, on standard output."""
    console = output()
    for assumption in result.trace.assumptions:
        console.print(f"assumed: {assumption}", style="dim", highlight=False)
    title = (
        f"{result.trace.source}: {len(result.trace.requests):,} requests at {result.options.speed:g}x, "
        f"engines at {result.time_scale:g}x real time"
    )
    console.print(report_table(title, result.report))


@asynccontextmanager
async def _stack(
    api_url: str | None, api_key: str | None, time_scale: float | None, engines: int
) -> AsyncIterator[Stack]:
    """The stack asked for: elsewhere, running here, or one of its own."""
    running = running_stack(load(Settings).state_dir)
    if running and (api_url is None or api_url.rstrip("/") == running.api_url.rstrip("/")):
        if time_scale is not None and time_scale != running.time_scale:
            click.echo(
                f"The running stack's engines run at {running.time_scale:g}x real time, not {time_scale:g}x; "
                "the replay keeps to their clock.",
                err=True,
            )
        yield msgspec.structs.replace(running, api_key=api_key or running.api_key)
    elif api_url:
        yield given_stack(api_url, api_key, time_scale or 1.0)
    else:
        click.echo("No stack runs here: starting one for this replay.", err=True)
        async with own_stack(time_scale or 1.0, engines) as own:
            yield own
