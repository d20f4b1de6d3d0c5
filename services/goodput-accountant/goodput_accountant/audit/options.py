"""What the audit commands share: their options, how they reach the ledger, and how they show what they do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import click
from pydantic import SecretStr
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from tokenfleet.bus import Bus
from tokenfleet.errors import ConfigurationError, UnavailableError
from tokenfleet.logs import quiet_logs
from tokenfleet.running_stack import default_state_dir, operator_settings, running_record
from tokenfleet.settings import Settings, load
from tokenfleet.time_options import Moment

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_state_dir,
    show_default="TOKENFLEET_STATE_DIR, or .tokenfleet",
    help="Folder of the stack's data, logs and keys.",
)


def from_option(text: str) -> Any:
    """`--from TIME`, with what it means to the command."""
    return click.option("--from", "from_ns", type=Moment(), metavar="TIME", help=text)


def to_option(text: str) -> Any:
    """`--to TIME`, with what it means to the command."""
    return click.option("--to", "to_ns", type=Moment(), metavar="TIME", help=text)


def check_order(from_ns: int | None, to_ns: int | None) -> None:
    """Refuse an empty window.

    Raises:
        click.UsageError: `--from` is not before `--to`.
    """
    if from_ns is not None and to_ns is not None and from_ns >= to_ns:
        raise click.UsageError(
            f"--from ({moment(from_ns)}) is not before --to ({moment(to_ns)}): the window is empty."
        )


def moment(unix_ns: int) -> str:
    """A time as a person reads it."""
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class _PostgresSettings(Settings):
    postgres_dsn: SecretStr | None = None


@asynccontextmanager
async def ledger_connection(state_dir: Path) -> AsyncIterator[asyncpg.Connection]:
    """Postgres: the one of TOKENFLEET_POSTGRES_DSN if set, else of the stack running from the folder.

    Raises:
        UnavailableError: no stack runs there, or Postgres goes away or refuses.
        ConfigurationError: the ledger's schema is not the one that this version knows.
    """
    given = load(_PostgresSettings).postgres_dsn
    dsn = given.get_secret_value() if given else running_record(state_dir).postgres_dsn
    try:
        connection = await asyncpg.connect(dsn, timeout=10)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise UnavailableError(
            f"Postgres cannot be used: {error}. Check TOKENFLEET_POSTGRES_DSN and that the server runs."
        ) from error
    try:
        yield connection
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise ConfigurationError(
            f"The database holds no ledger of this version ({error}). A goodput accountant of this version brings it up "
            "to date when it starts."
        ) from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise UnavailableError(f"Postgres went away or refused: {error!r}") from error
    finally:
        try:
            await connection.close(timeout=2)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


@asynccontextmanager
async def operator_bus(state_dir: Path) -> AsyncIterator[Bus]:
    """NATS as the operator.

    Raises:
        UnavailableError: no stack runs from the folder, or NATS cannot be reached.
    """
    quiet_logs()
    bus = await Bus.connect(operator_settings(state_dir), "audit")
    try:
        yield bus
    finally:
        await bus.drain()


class Stages:
    """What a long command is at, on standard error if that is a terminal."""

    def __init__(self) -> None:
        stderr = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=stderr,
            transient=True,
            disable=not stderr.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> "Stages":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, stage: str, done: float | None = None) -> None:
        """Show a stage and how much of it is done, 0 to 1; None where that cannot be known."""
        total = None if done is None else 1.0
        self._bar.update(self._task, description=stage, total=total, completed=done or 0.0)
