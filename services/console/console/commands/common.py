"""What several commands share."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from console.operator import operator_bus
from tokenfleet.bus import Bus
from tokenfleet.logs import quiet_logs
from tokenfleet.running_stack import default_state_dir, operator_settings

T = TypeVar("T")

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_state_dir,
    show_default="TOKENFLEET_STATE_DIR, or .tokenfleet",
    help="Folder of the stack's data, logs and keys.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def shown(value: Any) -> str:
    """One setting's value as in `KEY=VALUE`."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@asynccontextmanager
async def connected(state_dir: Path) -> AsyncIterator[Bus]:
    """NATS as the operator: the server of TOKENFLEET_NATS_URL if set, else of the stack running from the folder.

    Raises:
        UnavailableError: no stack runs there, or NATS cannot be reached.
    """
    quiet_logs()
    async with operator_bus(operator_settings(state_dir)) as bus:
        yield bus


def on_bus(state_dir: Path, do: Callable[[Bus], Awaitable[T]]) -> T:
    """What `do` returns, given a connection as `connected` makes it."""

    async def run() -> T:
        async with connected(state_dir) as bus:
            return await do(bus)

    return asyncio.run(run())
