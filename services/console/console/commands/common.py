"""What several commands share."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import structlog

from console.operator import operator_bus
from tokenfleet.bus import Bus
from tokenfleet.running_stack import default_state_dir, operator_settings

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_state_dir,
    show_default="TOKENFLEET_STATE_DIR, or .tokenfleet",
    help="Folder of the stack's data, logs and keys.",
)


def quiet_logs() -> None:
    """Shared modules log for services; a command says what went wrong in one message instead."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@asynccontextmanager
async def connected(state_dir: Path) -> AsyncIterator[Bus]:
    """NATS as the operator: the server of TOKENFLEET_NATS_URL if set, else of the stack running from the folder.

    Raises:
        UnavailableError: no stack runs there, or NATS cannot be reached.
    """
    quiet_logs()
    async with operator_bus(operator_settings(state_dir)) as bus:
        yield bus
