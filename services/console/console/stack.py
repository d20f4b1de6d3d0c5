"""A whole TokenFleet on this machine: servers, services, engines, node agents; started, watched, stopped.

async with Stack(StackOptions(port=0, time_scale=5)) as stack:
    ... stack.api_url, stack.api_key, stack.environment ...
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import aiohttp
import msgspec

from console.embedded.nats import USERS, EmbeddedNats, NatsSite
from console.embedded.postgres import EmbeddedPostgres
from console.environment import OPERATOR, PREFIX, nats_variables
from console.fleet import DECIDERS, Fleet, deciders_of_site
from console.health import read_health, ready_instances
from console.operator import add_key, operator_bus
from console.options import StackOptions, node_names, plan_engines
from console.preflight import check_port, check_postgres, external, external_logins, free_port
from console.process import ManagedProcess, Report, log_end
from console.state import StateFolder
from console.supervisor import Supervisor
from tokenfleet.contracts.policy import Tenant
from tokenfleet.errors import UnavailableError
from tokenfleet.running_stack import ProcessRecord, RunRecord

DEFAULT_TENANT = "default"
HEALTH_POLL_S = 0.25
HEALTH_TIMEOUT_S = 2.0
TOO_MANY_RESTARTS = 4


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a start has come."""

    step: str
    ready_instances: int
    expected_instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePlace:
    """What a stack that is one of several sites is given by the whole."""

    site: str
    sites: tuple[str, ...]
    """The fleet's, its home first."""
    exchange_url: str
    postgres_dsn: str
    proxies: Mapping[str, str]
    """Through which ingress reaches the engines of each other site."""
    region: str | None = None
    """Where it lies, as far as data residency goes."""

    @property
    def is_home(self) -> bool:
        return self.site == self.sites[0]


class _ReadyFile(msgspec.Struct):
    """What matters here of an engine's ready file. One without a process id was put there by an operator."""

    pid: int | None = None


OnProgress = Callable[[Progress], None]


class Stack:
    """Use as an async context manager, or `start` and `stop`."""

    def __init__(
        self,
        options: StackOptions,
        report: Report = print,
        on_progress: OnProgress = lambda _: None,
        place: SitePlace | None = None,
    ) -> None:
        """`place`: where this is one of several sites."""
        self._options = options
        self._place = place
        self._report = report
        self._on_progress = on_progress
        self._engines = plan_engines(options)
        self._state = StateFolder(options.state_dir)
        self._supervisor = Supervisor(report, self._write_record)
        self._postgres: EmbeddedPostgres | None = None
        self._record: RunRecord | None = None
        self._port = 0
        self.fleet: Fleet
        """Makes more processes like those of this stack, for `supervisor`."""

    @property
    def supervisor(self) -> Supervisor:
        return self._supervisor

    @property
    def processes(self) -> dict[str, ManagedProcess]:
        """The running processes by name."""
        return self._supervisor.processes

    @property
    def record(self) -> RunRecord:
        """How to reach the stack, once its servers run."""
        if self._record is None:
            raise RuntimeError("the stack has not started")
        return self._record

    @property
    def api_url(self) -> str:
        """Base of the HTTP API, without /v1."""
        return self.record.api_url

    @property
    def api_key(self) -> str:
        """The development key, of the tenant `default`."""
        return self._state.api_key()

    @property
    def environment(self) -> dict[str, str]:
        """TOKENFLEET_* variables of a client: the API and its key, and NATS as the operator."""
        return self.record.environment

    @property
    def log_folder(self) -> Path:
        return self._state.logs

    @property
    def first_model(self) -> str:
        """A model to try."""
        return self._options.models[0].model

    async def __aenter__(self) -> "Stack":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything and return once requests can be served.

        Raises:
            ConfigurationError: the options, this machine or another running stack do not allow it.
            UnavailableError: a server or a service does not come up. Nothing is left running.
        """
        self._state.lock()  # outside: what is not ours is not stopped
        try:
            await self._begin()
            await self.start_services()
        except BaseException:
            await self.stop()
            raise

    async def start_servers(self) -> None:
        """The first half of a start: what `record` then tells how to reach. Raises as `start`."""
        self._state.lock()
        await self._begin()

    async def _begin(self) -> None:
        self._port = self._options.port or free_port(self._options.host)
        check_port(self._options.host, self._port)
        self._forget_dead_engines()
        self._step("starting NATS and Postgres")
        self._record = await self._start_servers(_url(self._options.host, self._port))
        self._write_record()

    async def start_services(self) -> None:
        """The second half. Raises as `start`."""
        if self._place is None or self._place.is_home:
            self._step("registering the default tenant")
            await self._register_key()
        self._step("starting services and engines")
        await self._start_fleet(self._port)
        await self._until_ready()

    async def stop(self) -> None:
        """Stop everything in reverse order. Data and logs stay."""
        await self._supervisor.stop()
        if self._postgres:
            self._postgres.close()
        self._state.remove_run()
        self._state.unlock()

    async def _start_servers(self, api_url: str) -> RunRecord:
        place = self._place
        nats_url = None if place else external("NATS_URL")
        postgres_dsn = place.postgres_dsn if place else external("POSTGRES_DSN")
        specs, nats = [], None
        secrets = self._state.secrets(USERS)
        if nats_url is None:
            site = NatsSite(place.site, place.exchange_url) if place else None
            nats = EmbeddedNats(self._state.root / "nats", secrets.nats_passwords, site)
            specs.append(nats.spec(self._state.log("nats")))
        if postgres_dsn is None:
            self._postgres = EmbeddedPostgres(self._state.root / "postgres")
            specs.append(self._postgres.spec(self._state.log("postgres")))
            postgres_dsn = self._postgres.dsn()
        elif place is None:
            await check_postgres(postgres_dsn)
        await self._supervisor.start(specs)
        logins = external_logins()
        if nats:
            nats_url = nats.url
            logins = {user: (user, secrets.nats_passwords[user]) for user in USERS}
        block_secret = external("BLOCK_SECRET") or secrets.block_secret
        return self._new_record(api_url, nats_url or "", logins, postgres_dsn, block_secret)

    def _new_record(
        self,
        api_url: str,
        nats_url: str,
        logins: dict[str, tuple[str, str]],
        postgres_dsn: str,
        block_secret: str,
    ) -> RunRecord:
        environment = {
            f"{PREFIX}API_URL": api_url,
            f"{PREFIX}API_KEY": self.api_key,
            **self._site_variables(),
            f"{PREFIX}TIME_SCALE": f"{self._options.time_scale:g}",
            f"{PREFIX}STATE_DIR": str(self._state.root),
            f"{PREFIX}BLOCK_SECRET": block_secret,
            **nats_variables(nats_url, logins.get(OPERATOR)),
        }
        return RunRecord(
            pid=os.getpid(),
            api_url=api_url,
            time_scale=self._options.time_scale,
            environment=environment,
            nats_logins=logins,
            postgres_dsn=postgres_dsn,
        )

    def _site_variables(self) -> dict[str, str]:
        if self._place is None:
            return {
                f"{PREFIX}SITE": external("SITE") or "local",
                f"{PREFIX}REGION": external("REGION") or "",
            }
        return {
            f"{PREFIX}SITE": self._place.site,
            f"{PREFIX}SITES": ",".join(self._place.sites),
            f"{PREFIX}REGION": self._place.region or "",
        }

    async def _register_key(self) -> None:
        async with operator_bus(self.record.client_settings()) as bus:
            await add_key(bus, Tenant(tenant=DEFAULT_TENANT), self.api_key)

    async def _start_fleet(self, port: int) -> None:
        self.fleet = fleet = Fleet(self._options, self._state, self.record)
        place = self._place
        services = (
            DECIDERS if place is None else deciders_of_site(home=place.is_home, engines=self._engines != [])
        )
        await self._supervisor.start([fleet.service(service) for service in services])
        await self._supervisor.start([fleet.engine(plan) for plan in self._engines])
        if place is None or self._engines:
            await self._supervisor.start([fleet.node_agent(node) for node in node_names(self._options)])
        await self._supervisor.start([fleet.ingress(port, place.proxies if place else {})])

    async def _until_ready(self) -> None:
        """Wait for ingress to answer and to know all our engines."""
        deadline = time.monotonic() + self._options.start_timeout_s
        expected = len(self._engines)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)) as session:
            while True:
                health = await read_health(session, self.api_url)
                ready = ready_instances(health) if health else 0
                step = "waiting for engines" if health else "waiting for ingress"
                self._on_progress(Progress(step, ready, expected))
                if health and ready >= expected:
                    return
                self._give_up_on_crash_loops()
                if time.monotonic() > deadline:
                    raise UnavailableError(self._not_ready(step, ready, expected))
                await asyncio.sleep(HEALTH_POLL_S)

    def _give_up_on_crash_loops(self) -> None:
        for process in self.processes.values():
            if process.restarts >= TOO_MANY_RESTARTS and process.pid is None:
                raise UnavailableError(
                    f"{process.spec.name} keeps dying while the stack starts. {log_end(process.spec.log_path)}"
                )

    def _not_ready(self, step: str, ready: int, expected: int) -> str:
        ingress = self._state.log("ingress")
        return (
            f"The stack was not ready within {self._options.start_timeout_s:g} s: {step} "
            f"({ready} of {expected} engines). {log_end(ingress)}\nAll logs are in {self._state.logs}."
        )

    def _step(self, step: str) -> None:
        self._on_progress(Progress(step, 0, len(self._engines)))

    def _forget_dead_engines(self) -> None:
        """Remove ready files that a killed run left behind."""
        for file in self._state.engines.glob("*/*.json"):
            # What is not readable is the node agent's to report.
            with contextlib.suppress(OSError, msgspec.DecodeError):
                pid = msgspec.json.decode(file.read_bytes(), type=_ReadyFile).pid
                if pid is not None and not os.path.exists(f"/proc/{pid}"):
                    file.unlink()

    def _write_record(self) -> None:
        if self._record is None:
            return
        processes = tuple(
            ProcessRecord(
                name=name, pid=process.pid, restarts=process.restarts, log=str(process.spec.log_path)
            )
            for name, process in self.processes.items()
        )
        self._record = msgspec.structs.replace(self._record, processes=processes)
        self._state.write_run(self._record)


def _url(host: str, port: int) -> str:
    """Where clients on this machine reach the API."""
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"  # noqa: S104
