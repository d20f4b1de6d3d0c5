"""`tokenfleet up`: start the whole stack and stay until told to stop."""

import asyncio
import signal
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from console.commands.common import state_dir_option
from console.options import DEFAULT_MODEL, DEFAULT_PROFILE, ModelShare, StackOptions, parse_model
from console.sites.options import SitesOptions, parse_sites
from console.sites.stack import SitesStack
from console.stack import Progress, Stack
from tokenfleet.logs import quiet_logs

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(
    epilog="""\b
Examples:
  tokenfleet up
  tokenfleet up --time-scale 5 --port 9000
  tokenfleet up --engines 6 --model llama-70b=4 --model qwen-32b@2=2
  tokenfleet up --sites A=0,B=2,C=2 --round-trip B-C=80ms --bandwidth A-B=100mbit
  tokenfleet up --sites A=0,B=2,C=2 --regions A=eu,B=eu,C=us
  TOKENFLEET_NATS_URL=nats://host:4222 TOKENFLEET_POSTGRES_DSN=postgresql://... tokenfleet up
"""
)
@click.option("--engines", type=click.IntRange(min=0), default=8, show_default=True, help="Emulated engines.")
@click.option(
    "--nodes", type=click.IntRange(min=1), default=2, show_default=True, help="Nodes they are spread over."
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME[@VERSION][=ENGINES]",
    help=f"A model the engines serve; repeat for several. Default: {DEFAULT_MODEL}.",
)
@click.option(
    "--time-scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Engine seconds per real second; 5 runs the emulated engines five times as fast.",
)
@click.option("--profile", default=DEFAULT_PROFILE, show_default=True, help="Hardware the engines emulate.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address the API listens on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port of the API; 0: any."
)
@click.option("--no-engines", is_flag=True, help="Start no emulated engines: they are elsewhere.")
@click.option(
    "--sites",
    metavar="SITE=ENGINES,...|NUMBER",
    help="Several sites, each with its own NATS and services, instead of one; a number: an entry without engines and "
    "others with two each.",
)
@click.option(
    "--round-trip",
    "round_trips",
    multiple=True,
    metavar="SITE-SITE=TIME",
    help="Between two sites, in wall time; repeat for several. Default: 30ms.",
)
@click.option(
    "--bandwidth",
    "bandwidths",
    multiple=True,
    metavar="SITE-SITE=RATE",
    help="Between two sites, in each direction; repeat for several. Default: no limit.",
)
@click.option(
    "--regions",
    metavar="SITE=REGION,...",
    help="Where the sites lie, for tenants and requests bound to regions. A site not named: not known.",
)
@state_dir_option
def up(
    engines: int,
    nodes: int,
    models: tuple[str, ...],
    time_scale: float,
    profile: str,
    host: str,
    port: int,
    no_engines: bool,
    sites: str | None,
    round_trips: tuple[str, ...],
    bandwidths: tuple[str, ...],
    regions: str | None,
    state_dir: Path,
) -> None:
    """Start NATS, Postgres, the six services, node agents and emulated engines; Ctrl-C stops all of it.

    The data stays in the state folder and is found again by the next `up`. A process that dies is started again.
    """
    options = StackOptions(
        engines=engines,
        nodes=nodes,
        models=tuple(parse_model(model) for model in models) or (ModelShare(DEFAULT_MODEL),),
        profile=profile,
        time_scale=time_scale,
        host=host,
        port=port,
        state_dir=state_dir,
        start_engines=not no_engines,
    )
    quiet_logs()
    asyncio.run(_up(options, _sites(sites, round_trips, bandwidths, regions), Console()))


def _sites(
    sites: str | None, round_trips: tuple[str, ...], bandwidths: tuple[str, ...], regions: str | None
) -> SitesOptions | None:
    if sites is None:
        if round_trips or bandwidths or regions:
            raise click.UsageError("--round-trip, --bandwidth and --regions are of several --sites.")
        return None
    for option in ("engines", "nodes", "no_engines"):
        if click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT:
            raise click.UsageError(
                f"--{option.replace('_', '-')} is of one site; --sites says how many engines each has."
            )
    return parse_sites(sites, round_trips, bandwidths, regions)


async def _up(options: StackOptions, sites: SitesOptions | None, console: Console) -> None:
    stopping = _stop_requested(console)
    with _progress_bar(console) as bar:
        task = bar.add_task("starting", total=None)
        step = ""

        def show(progress: Progress) -> None:
            nonlocal step
            total = progress.expected_instances or None
            bar.update(task, description=progress.step, completed=progress.ready_instances, total=total)
            if not console.is_terminal and progress.step != step:
                console.print(f"{progress.step[0].upper()}{progress.step[1:]} ...")
            step = progress.step

        def report(message: str) -> None:
            bar.console.print(message, markup=False)

        stack = SitesStack(options, sites, report, show) if sites else Stack(options, report, show)
        starting = asyncio.create_task(stack.start())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        else:
            await starting
    try:
        if not stopping.done():
            _announce(console, stack)
            await stopping
    finally:
        await stack.stop()
        console.print("Stopped.")


def _stop_requested(console: Console) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        # Said once: a second Ctrl-C must not leave processes behind, and every stop is bounded anyway.
        if not stopping.done():
            console.print("\nStopping ...")
            stopping.set_result(None)

    for signum in STOP_SIGNALS:
        loop.add_signal_handler(signum, on_signal)
    return stopping


def _progress_bar(console: Console) -> ProgressBar:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("engines"),
        TimeElapsedColumn(),
    )
    return ProgressBar(*columns, console=console, transient=True, disable=not console.is_terminal)


def _announce(console: Console, stack: Stack | SitesStack) -> None:
    model = stack.first_model
    console.print(
        f"TokenFleet is up: [bold]{stack.api_url}/v1[/bold]\n"
        f"API key: {stack.api_key}\n"
        f"Logs:    {stack.log_folder}\n"
        f"{_sites_of(stack)}"
        "Try it:",
        highlight=False,
    )
    console.print(
        f"  curl -N {stack.api_url}/v1/chat/completions -H 'Authorization: Bearer {stack.api_key}' \\\n"
        "    -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "{model}", "stream": true, "max_tokens": 32, '
        '"messages": [{"role": "user", "content": "Hello"}]}\'\n',
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print("  tokenfleet status\n\nCtrl-C stops everything.", highlight=False)


def _sites_of(stack: Stack | SitesStack) -> str:
    if isinstance(stack, Stack):
        return "\n"
    lines = [f"Site {name}:  {site.api_url}/v1\n" for name, site in stack.sites.items()]
    return f"{''.join(lines)}Links:   tokenfleet links\n\n"
