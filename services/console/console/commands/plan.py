"""`tokenfleet plan`: how many replicas each pool should have, and why."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import click
from rich.live import Live

from console.commands.common import json_option, print_json, state_dir_option
from console.health import admin_url
from console.plans import read_plan, render
from console.state import StateFolder
from tokenfleet.contracts.control import Plan
from tokenfleet.errors import UnavailableError
from tokenfleet.terminal import output

TIMEOUT_S = 3.0
WATCH_S = 5.0


@click.command(
    epilog="""\b
Examples:
  tokenfleet plan
  tokenfleet plan --watch
  tokenfleet plan --json
  tokenfleet plan --url http://fleetmind:9100        of a fleet that runs in containers
"""
)
@click.option("--url", help="FleetMind's admin address, where the stack was not started by `tokenfleet up`.")
@click.option(
    "--watch", is_flag=True, help="Read again every five seconds, until Ctrl-C; JSON then has one line each."
)
@json_option
@state_dir_option
def plan(url: str | None, watch: bool, as_json: bool, state_dir: Path) -> None:
    """Show FleetMind's latest plan: replicas that run, that are wanted and that are to be begun now, the demand it is
    made for with the error of its forecast, and the reasons. Work is in instances kept busy.

    By default the plan is a dry run: it is shown, and nothing is scaled by it.
    """
    url = url or _own_url(state_dir)
    if watch:
        asyncio.run(_watch(url, as_json))
        return
    latest = asyncio.run(_read_once(url))
    if as_json:
        print_json(latest.model_dump())
    else:
        output().print(render(latest, time.time_ns()), highlight=False)


def _own_url(state_dir: Path) -> str:
    state = StateFolder(state_dir)
    state.running()
    log = state.log("fleetmind")
    url = admin_url(log)
    if url is None:
        raise UnavailableError(f"FleetMind does not answer. See {log}.")
    return url


async def _read_once(url: str) -> Plan:
    async for latest in readings(url):
        return latest
    raise AssertionError


async def _watch(url: str, as_json: bool) -> None:
    if as_json:
        async for latest in readings(url):
            click.echo(latest.model_dump_json())
        return
    with Live(console=output(), auto_refresh=False) as live:
        async for latest in readings(url):
            live.update(render(latest, time.time_ns()), refresh=True)


async def readings(url: str) -> AsyncIterator[Plan]:
    """The plan now and every `WATCH_S`. Raises as `read_plan`."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        while True:
            yield await read_plan(session, url)
            await asyncio.sleep(WATCH_S)
