"""`tokenfleet queue`: what waits at SLOMax, for how long, and for whom."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import click
import msgspec
from rich.live import Live

from console.commands.common import json_option, print_json, state_dir_option
from console.health import admin_url, read_health
from console.queues import Queues, read_queues, render
from console.state import StateFolder
from tokenfleet.errors import UnavailableError
from tokenfleet.terminal import output

TIMEOUT_S = 3.0
WATCH_S = 1.0


@click.command(
    epilog="""\b
Examples:
  tokenfleet queue
  tokenfleet queue --pool llama-70b@1 --watch
"""
)
@click.option("--pool", help="Only this pool, as `tokenfleet status` names it.")
@click.option(
    "--watch", is_flag=True, help="Read again every second, until Ctrl-C; JSON then has one line each."
)
@json_option
@state_dir_option
def queue(pool: str | None, watch: bool, as_json: bool, state_dir: Path) -> None:
    """Show what waits at SLOMax by pool and class: requests, input tokens, the oldest's wait, when a new one
    could start, and whose they are; and where feedback has moved the margins. Times are engine seconds.
    """
    state = StateFolder(state_dir)
    state.running()
    log = state.log("slomax")
    if watch:
        asyncio.run(_watch(log, pool, as_json))
        return
    read = asyncio.run(_read_once(log, pool))
    if as_json:
        print_json(read)
    else:
        output().print(render(read), highlight=False)


async def _read_once(log: Path, pool: str | None) -> Queues:
    async for read in readings(log, pool):
        return read
    raise AssertionError


async def _watch(log: Path, pool: str | None, as_json: bool) -> None:
    if as_json:
        async for read in readings(log, pool):
            click.echo(msgspec.json.encode(read))
        return
    with Live(console=output(), auto_refresh=False) as live:
        async for read in readings(log, pool):
            live.update(render(read), refresh=True)


async def readings(log: Path, pool: str | None) -> AsyncIterator[Queues]:
    """The queues now and every `WATCH_S`, of the SLOMax that writes that log.

    Raises:
        UnavailableError: it does not answer, or says nothing of the pool.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        while True:
            url = admin_url(log)
            health = await read_health(session, url) if url else None
            if health is None:
                raise UnavailableError(f"SLOMax does not answer. See {log}.")
            yield read_queues(health, pool)
            await asyncio.sleep(WATCH_S)
