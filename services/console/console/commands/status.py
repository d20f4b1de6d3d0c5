"""`tokenfleet status`: what runs, and how it is."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import click
from rich.console import Console
from rich.table import Table

from console.commands.common import state_dir_option
from console.health import admin_url, read_health
from console.state import StateFolder
from tokenfleet.running_stack import RunRecord

TIMEOUT_S = 3.0


@click.command()
@state_dir_option
def status(state_dir: Path) -> None:
    """Show the running stack: its processes, and what ingress and TokenPilot say of the fleet."""
    state = StateFolder(state_dir)
    record = state.running()
    for site, folder in record.site_dirs.items():
        Console().rule(f"site {site}", align="left")
        _show(StateFolder(Path(folder)))
    if record.site_dirs:
        Console().rule("links, exchanges and the ledger's server", align="left")
        Console().print(_processes(record))
    else:
        _show(state)


def _show(state: StateFolder) -> None:
    record = state.running()
    health, pilot = asyncio.run(_health(record.api_url, admin_url(state.log("tokenpilot"))))
    console = Console()
    console.print(
        f"API {record.api_url}/v1, time scale {record.time_scale:g}, pid {record.pid}, logs in {state.logs}",
        highlight=False,
    )
    console.print(_processes(record))
    if health is None:
        console.print(f"Ingress does not answer at {record.api_url}/health.")
        return
    console.print(_pools(health))
    if others := health.get("sites"):
        console.print(_others(others))
    console.print(_index(pilot), highlight=False)
    console.print(f"Requests in flight: {health.get('in_flight', 'unknown')}")


async def _health(
    api_url: str, tokenpilot_url: str | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        ingress = await read_health(session, api_url)
        return ingress, await read_health(session, tokenpilot_url) if tokenpilot_url else None


def _processes(record: RunRecord) -> Table:
    table = Table("process", "pid", "restarts", "log")
    for process in record.processes:
        pid = str(process.pid) if process.pid else "down"
        table.add_row(process.name, pid, str(process.restarts), Path(process.log).name)
    return table


def _pools(health: dict[str, Any]) -> Table:
    """Instances as ingress sees them, which is who could be sent a request now."""
    table = Table("pool", "ready", "known")
    for pool, counts in health.get("pools", {}).items():
        table.add_row(pool, str(counts.get("ready")), str(counts.get("known")))
    return table


def _others(sites: dict[str, Any]) -> Table:
    """Other sites as this one's ingress hears them."""
    table = Table("other site", "ready", "known", "silent for")
    for site, said in sites.items():
        table.add_row(site, str(said["ready"]), str(said["known"]), f"{said['silent_s']} s")
    return table


def _index(pilot: dict[str, Any] | None) -> str:
    """How far TokenPilot can trust what it knows of the instances' caches."""
    if pilot is None:
        return "Prefix index: unknown, TokenPilot does not answer."
    counts = [f"{count} {quality}" for quality, count in sorted(pilot.get("index", {}).items())]
    degraded = f" (degraded: {', '.join(pilot['degraded'])})" if pilot.get("degraded") else ""
    return f"Prefix index: {', '.join(counts) or 'no instances'}{degraded}"
