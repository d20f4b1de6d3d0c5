"""Servers for the tests: the embedded NATS and Postgres, started once per session when a test asks for one.

`nats_server` is emptied after each module, and each module gets a Postgres database of its own.
"""

import asyncio
import secrets
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import hypothesis
import nats
import pytest
import structlog
from otlp_receiver import OtlpReceiver
from pydantic import SecretStr
from running_stack import RunningStack, start_stack

from console.embedded.nats import USERS, EmbeddedNats
from console.embedded.postgres import EmbeddedPostgres
from console.supervisor import Supervisor
from tokenfleet.settings import Settings

# A shared machine may stall for longer than any deadline.
hypothesis.settings.register_profile("tokenfleet", deadline=None)
hypothesis.settings.load_profile("tokenfleet")

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True)
class NatsServer:
    """A running server, its users, and how to be one of them."""

    url: str
    passwords: dict[str, str]

    def settings(self, user: str, settings_type: type[SettingsT] = Settings, **values: Any) -> SettingsT:
        """The settings of a process that connects as `user`."""
        password = SecretStr(self.passwords[user])
        return settings_type(nats_url=self.url, nats_user=user, nats_password=password, **values)

    def environment(self, user: str) -> dict[str, str]:
        """The same for a child process."""
        return {
            "TOKENFLEET_NATS_URL": self.url,
            "TOKENFLEET_NATS_USER": user,
            "TOKENFLEET_NATS_PASSWORD": self.passwords[user],
        }


class Servers:
    """A supervisor on a thread of its own, so that it outlives the event loop of each test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="servers", daemon=True)
        self._thread.start()
        self.supervisor = Supervisor(print)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)

    def close(self) -> None:
        self.run(self.supervisor.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command run inside a test silences the logs of this process: not those of the tests after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def session_nats_server(servers: Servers) -> NatsServer:
    passwords = {user: f"p{secrets.token_hex(16)}" for user in USERS}
    server = EmbeddedNats(servers.folder / "nats", passwords)
    servers.run(servers.supervisor.start([server.spec(servers.folder / "nats.log")]))
    return NatsServer(server.url, passwords)


@pytest.fixture(scope="session")
def session_postgres(servers: Servers) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(servers.folder / "postgres")
    servers.run(servers.supervisor.start([server.spec(servers.folder / "postgres.log")]))
    yield server
    server.close()


@pytest.fixture(scope="module")
def nats_server(servers: Servers, session_nats_server: NatsServer) -> Iterator[NatsServer]:
    """A NATS server with JetStream and the production permissions, empty at the start of the module."""
    yield session_nats_server
    servers.run(delete_all_streams(session_nats_server))


@pytest.fixture(scope="module")
def postgres_dsn(servers: Servers, session_postgres: EmbeddedPostgres) -> Iterator[str]:
    """A Postgres database that only this module uses."""
    database = f"test_{secrets.token_hex(6)}"
    servers.run(_execute(session_postgres.dsn(), f'CREATE DATABASE "{database}"'))
    yield session_postgres.dsn(database)
    servers.run(_execute(session_postgres.dsn(), f'DROP DATABASE "{database}" WITH (FORCE)'))


async def delete_all_streams(server: NatsServer) -> None:
    client = await nats.connect(
        server.url,
        user="operator",
        password=server.passwords["operator"],
        inbox_prefix="_INBOX_operator",
        max_reconnect_attempts=20,
        reconnect_time_wait=0.1,
    )
    manager = client.jsm()
    for stream in await manager.streams_info():
        await manager.delete_stream(stream.config.name or "")
    await client.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def otlp() -> Iterator[OtlpReceiver]:
    """Receives what the services of `running_stack` export by OTLP."""
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def running_stack(tmp_path_factory: pytest.TempPathFactory, otlp: OtlpReceiver) -> Iterator[RunningStack]:
    """A whole stack with two models: llama-70b on engines 1 to 3, tiny on engine 4, ten times real time."""
    state_dir = tmp_path_factory.mktemp("stack") / "state"
    stack = start_stack(
        state_dir,
        *("--engines", "4", "--model", "llama-70b@1=3", "--model", "tiny@2=1", "--time-scale", "10"),
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.endpoint,
    )
    yield stack
    stack.stop()
