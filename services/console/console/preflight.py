"""What is looked at before a stack starts: servers of the user's own, and the API's port."""

import contextlib
import os
import random
import socket
from collections.abc import Container

import asyncpg

from console.embedded.nats import USERS
from console.environment import PREFIX
from tokenfleet.errors import ConfigurationError, UnavailableError

QUIET_PORTS = (20_000, 32_768)
"""Below what Linux, macOS and the BSDs use for outgoing connections."""


def external(name: str) -> str | None:
    """A TOKENFLEET_* variable of the environment the stack is started in."""
    return os.environ.get(f"{PREFIX}{name}") or None


def external_logins() -> dict[str, tuple[str, str]]:
    """Credentials for a NATS server of the user's own: one login for all, or a password per service, or none."""
    if user := external("NATS_USER"):
        return dict.fromkeys(USERS, (user, external("NATS_PASSWORD") or ""))
    passwords = {user: os.environ.get(f"NATS_PASSWORD_{user.upper()}") for user in USERS}
    return {user: (user, password) for user, password in passwords.items() if password}


async def check_postgres(dsn: str) -> None:
    """Connect once.

    Raises:
        UnavailableError: it does not work.
    """
    try:
        connection = await asyncpg.connect(dsn, timeout=5)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise UnavailableError(
            f"The Postgres server of TOKENFLEET_POSTGRES_DSN cannot be used: {error or 'no answer within 5 s'}. "
            "Correct the variable, or unset it to use the embedded server."
        ) from error
    await connection.close()


def free_port(host: str, taken: Container[int] = ()) -> int:
    """A port that nobody listens on just now, and that is not in `taken`.

    It is none of those that the system gives to outgoing connections, so that it stays free until it is listened on.
    """
    while True:
        port = random.randrange(*QUIET_PORTS)  # noqa: S311 - any will do
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            if port not in taken:
                return port


def accepts(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), timeout=0.5).close()
    except OSError:
        return False
    return True


def check_port(host: str, port: int) -> None:
    """Make sure that the API can listen.

    Raises:
        ConfigurationError: the port is taken, or not ours to use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"The API cannot listen on {host}:{port}: {error.strerror}. Stop what uses the port, or choose "
                "another with --port (0: any free one)."
            ) from error
