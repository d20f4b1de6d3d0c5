"""NATS and Postgres that a test may do anything to, accountants as processes of their own, and the audit of the ledger."""

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx2 as httpx
from accountants import SITE, ended_request, publish
from booking import until_booked
from conftest import NatsServer, Servers, delete_all_streams
from warm_processes import start_service

from console.embedded.nats import USERS, EmbeddedNats
from console.embedded.postgres import EmbeddedPostgres
from console.process import ManagedProcess
from goodput_accountant.audit.verify import Verdict, Window, verify_stream
from goodput_accountant.main import DURABLE
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.requests import Ended
from tokenfleet.errors import UnavailableError

PATIENCE_S = 60.0
"""For anything to happen on a busy machine."""
PUBLISH_EVERY_S = 0.05
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def until(condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for something, failing with what did not happen."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.02)


@dataclass(frozen=True)
class LedgerServers:
    """The servers of a module; `LedgerWorld` is what one test has of them."""

    servers: Servers
    nats: ManagedProcess
    postgres: ManagedProcess
    nats_server: NatsServer
    postgres_server: EmbeddedPostgres

    @classmethod
    def start(cls, servers: Servers, name: str, postgres_folder: Path | None = None) -> "LedgerServers":
        """Start both, with state of their own."""
        folder = servers.folder / name
        passwords = {user: f"p{secrets.token_hex(16)}" for user in USERS}
        embedded_nats = EmbeddedNats(folder / "nats", passwords)
        nats = ManagedProcess(embedded_nats.spec(folder / "nats.log"), print)
        postgres_server = EmbeddedPostgres(postgres_folder or folder / "postgres")
        postgres = ManagedProcess(postgres_server.spec(folder / "postgres.log"), print)
        for process in (nats, postgres):
            servers.run(process.start())
        return cls(servers, nats, postgres, NatsServer(embedded_nats.url, passwords), postgres_server)

    def stop(self) -> None:
        for process in (self.nats, self.postgres):
            self.servers.run(process.stop())
        self.postgres_server.close()


class AccountantProcess:
    """One accountant; wait for `started` before relying on it."""

    def __init__(self, environment: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._admin_port: int = free.getsockname()[1]
        environment = {**environment, "TOKENFLEET_ADMIN_PORT": str(self._admin_port)}
        self._process = start_service("goodput_accountant.main", environment)

    async def started(self) -> None:
        """Return once it takes in events: its admin server comes last."""

        async def listens() -> bool:
            assert self.alive, "the accountant ended instead of starting"
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._admin_port)
            except OSError:
                return False
            writer.close()
            return True

        await until(listens, "the accountant starts")

    async def sees_postgres(self) -> bool:
        """Whether it says that it can use Postgres."""
        answer = await asyncio.to_thread(
            httpx.get, f"http://127.0.0.1:{self._admin_port}/health", timeout=5.0
        )
        return answer.json()["postgres"] == "connected"

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, signum: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signum)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.join()

    def cpu_s(self) -> float:
        """CPU seconds it has used so far, all threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@dataclass
class LedgerWorld:
    """An empty stream, an empty database, and a connection as the operator, who may see and change everything."""

    servers: LedgerServers
    dsn: str
    operator: Bus
    accountants: list[AccountantProcess] = field(default_factory=list)

    async def accountant(self, **settings: object) -> AccountantProcess:
        """Start one more accountant; returns once it takes in events."""
        values = {"site": SITE, "postgres_dsn": self.dsn, **settings}
        environment = {f"TOKENFLEET_{name.upper()}": str(value) for name, value in values.items()}
        nats = self.servers.nats_server.environment("goodput_accountant")
        accountant = AccountantProcess(nats | environment)
        self.accountants.append(accountant)
        await accountant.started()
        return accountant

    async def backlog(self) -> int:
        """How many terminal events are not acknowledged."""
        return await self.operator.consumer_backlog(subjects.STREAM_REQUESTS, DURABLE)

    async def until_acknowledged(self) -> None:
        """Return once the accountants have acknowledged everything."""
        await until_booked(self.operator)

    async def rows(self) -> int:
        """How many rows there are, whatever they say."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval("SELECT count(*) FROM ledger")
        finally:
            await connection.close()

    async def until_rows(self, count: int) -> None:
        """Return once there are at least so many."""

        async def written() -> bool:
            return await self.rows() >= count

        await until(written, f"{count} rows")

    async def verdict(self) -> Verdict:
        """What `tokenfleet audit verify` finds once the accountants have acknowledged everything."""
        await self.until_acknowledged()
        connection = await asyncpg.connect(self.dsn)
        try:
            return await verify_stream(connection, self.operator, Window(), 0.0, lambda stage, done: None)
        finally:
            await connection.close()


class Load:
    """Requests that end all the time; each is published until NATS has it."""

    def __init__(self, server: NatsServer, name: str, rate: float) -> None:
        self._server = server
        self._name = name
        self._at_once = round(rate * PUBLISH_EVERY_S)
        self._stopped = False
        self.published = 0

    async def run(self) -> None:
        bus = await Bus.connect(self._server.settings("ingress"), "load")
        while not self._stopped:
            events = [
                ended_request(f"{self._name}-{number}")
                for number in range(self.published, self.published + self._at_once)
            ]
            await self._publish(bus, events)
            self.published += len(events)
            await asyncio.sleep(PUBLISH_EVERY_S)
        await bus.drain()

    async def _publish(self, bus: Bus, events: list[Ended]) -> None:
        while True:
            try:
                await publish(bus, events)
                return
            except UnavailableError:  # as ingress does: the same event ids again
                await asyncio.sleep(PUBLISH_EVERY_S)

    def stop(self) -> None:
        self._stopped = True


@contextlib.asynccontextmanager
async def load(world: LedgerWorld, name: str = "load", rate: float = 1_000) -> AsyncIterator[Load]:
    """So many requests a second while in the context; afterwards all of them are stored."""
    requests = Load(world.servers.nats_server, name, rate)
    running = asyncio.create_task(requests.run())
    try:
        yield requests
    finally:
        requests.stop()
        await running


@contextlib.asynccontextmanager
async def ledger_world(servers: LedgerServers) -> AsyncIterator[LedgerWorld]:
    """Begin anew; afterwards no accountant runs and the streams are gone."""
    dsn = await new_database(servers.postgres_server)
    operator = await Bus.connect(servers.nats_server.settings("operator"), "test")
    world = LedgerWorld(servers, dsn, operator)
    try:
        yield world
    finally:
        for accountant in world.accountants:
            accountant.kill()
        await operator.drain()
        await delete_all_streams(servers.nats_server)


async def new_database(server: EmbeddedPostgres) -> str:
    """The DSN of an empty database."""
    name = f"ledger_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return server.dsn(name)
