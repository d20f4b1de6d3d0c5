"""Several sites on this machine: an exchange and a stack each, the links between them, and one ledger.

    async with SitesStack(StackOptions(port=0), parse_sites("A=0,B=2,C=2")) as fleet:
        ... fleet.api_url (of the first site), fleet.sites["B"].api_url, fleet.links_url ...

Below the state folder, `sites/NAME` is the state folder of each site.
"""

import asyncio
import shutil
import sys
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from console.embedded.exchange import EmbeddedExchange
from console.embedded.nats import USERS
from console.embedded.postgres import EmbeddedPostgres
from console.environment import child_environment
from console.operator import operator_bus
from console.options import StackOptions
from console.preflight import accepts
from console.process import ProcessSpec, Report
from console.sites.joined import until_joined
from console.sites.options import SiteShare, SitesOptions
from console.sites.plan import HOST, ExchangePorts, LinksPlan, plan_ports, write_plan
from console.stack import OnProgress, Progress, SitePlace, Stack
from console.state import StateFolder
from console.supervisor import Supervisor
from tokenfleet.running_stack import ProcessRecord

FABRIC_USERS = ("site", "exchange")
"""Logins of the exchanges: of each site's NATS, and of one another (infra/nats/exchange.conf)."""
SHARED_FILES = ("secrets.json", "api-key")
"""The fleet's, which every site needs."""


class SitesStack:
    """Use as an async context manager, or `start` and `stop`."""

    def __init__(
        self,
        options: StackOptions,
        sites: SitesOptions,
        report: Report = print,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        self._options = options
        self._sites = sites
        self._report = report
        self._on_progress = on_progress
        self._state = StateFolder(options.state_dir)
        self._supervisor = Supervisor(report, self._write_record)
        self._postgres = EmbeddedPostgres(self._state.root / "postgres")
        self._progress: dict[str, Progress] = {}
        self._links: LinksPlan | None = None
        self._started = False
        self.sites: dict[str, Stack] = {}
        """The running sites by name."""

    @property
    def _home(self) -> Stack:
        return self.sites[self._sites.names[0]]

    @property
    def api_url(self) -> str:
        """Of the first site."""
        return self._home.api_url

    @property
    def api_key(self) -> str:
        return self._state.api_key()

    @property
    def links_url(self) -> str:
        """Where the links between the sites are shown and changed."""
        assert self._links is not None
        return self._links.admin_url

    @property
    def log_folder(self) -> Path:
        return self._state.root / "sites"

    @property
    def first_model(self) -> str:
        return self._options.models[0].model

    async def __aenter__(self) -> "SitesStack":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything and return once every site can serve requests.

        Raises:
            ConfigurationError: the options, this machine or another running stack do not allow it.
            UnavailableError: a server or a service does not come up. Nothing is left running.
        """
        self._state.lock()
        try:
            passwords = self._state.secrets((*USERS, *FABRIC_USERS)).nats_passwords
            self._state.api_key()
            ports, self._links = plan_ports(self._sites)
            exchanges = {name: self._exchange(name, ports[name], passwords) for name in self._sites.names}
            self._say(self._sites.names[0], Progress("starting Postgres and the links", 0, 0))
            await self._supervisor.start(
                [self._postgres.spec(self._state.log("postgres")), self._links_spec()]
            )
            await self._supervisor.start(
                [exchange.spec(self._state.log(f"exchange-{name}")) for name, exchange in exchanges.items()]
            )
            for share in self._sites.sites:
                self.sites[share.name] = self._stack(share, exchanges[share.name].leaf_url)
            others = [stack for stack in self.sites.values() if stack is not self._home]
            await _all(stack.start_servers() for stack in self.sites.values())
            # Their streams first, which the home sources; then the home's buckets, which they mirror. NATS tries again
            # what it does not find, but only after half a minute.
            for stack in others:
                async with operator_bus(stack.record.client_settings()):
                    pass
            await until_joined(self._home.record.client_settings())
            await self._home.start_services()
            await _all(stack.start_services() for stack in others)
            self._started = True
            self._write_record()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop everything in reverse order. Data and logs stay."""
        self._started = False
        await asyncio.gather(*(stack.stop() for stack in self.sites.values()))
        await self._supervisor.stop()
        self._postgres.close()
        self._state.remove_run()
        self._state.unlock()

    def _exchange(self, site: str, ports: ExchangePorts, passwords: dict[str, str]) -> EmbeddedExchange:
        assert self._links is not None
        return EmbeddedExchange(
            site,
            self._state.root / "exchanges" / site,
            leaf_port=ports.leaf,
            route_port=ports.route,
            peer_ports=self._links.routes(site),
            site_password=passwords["site"],
            exchange_password=passwords["exchange"],
        )

    def _links_spec(self) -> ProcessSpec:
        plan = self._links
        assert plan is not None
        path = self._state.root / "links.json"
        write_plan(path, plan)
        return ProcessSpec(
            name="links",
            command=(sys.executable, "-m", "console.sites.links", str(path)),
            environment=child_environment({}),
            log_path=self._state.log("links"),
            ready=lambda: accepts(HOST, plan.admin_port),
        )

    def _stack(self, share: SiteShare, exchange_url: str) -> Stack:
        assert self._links is not None
        folder = self._state.root / "sites" / share.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in SHARED_FILES:
            shutil.copy2(self._state.root / file, folder / file)
        names = self._sites.names
        options = replace(
            self._options,
            engines=share.engines,
            nodes=1,
            port=self._options.port if share.name == names[0] else 0,
            state_dir=folder,
            start_engines=share.engines > 0,
        )
        place = SitePlace(
            site=share.name,
            sites=names,
            exchange_url=exchange_url,
            postgres_dsn=self._postgres.dsn(),
            proxies=self._links.proxies(share.name),
            region=share.region,
        )

        def report(message: str) -> None:
            self._report(f"{share.name}: {message}")

        def progress(progress: Progress) -> None:
            self._say(share.name, progress)

        return Stack(options, report, progress, place)

    def _say(self, site: str, progress: Progress) -> None:
        self._progress[site] = progress
        ready = sum(each.ready_instances for each in self._progress.values())
        expected = sum(share.engines for share in self._sites.sites)
        home = self._sites.names[0]
        step = f"site {home}: {progress.step}" if site == home else "starting the other sites"
        self._on_progress(Progress(step, ready, expected))

    def _write_record(self) -> None:
        """The home's record, which is the whole's too, with the processes that belong to no site."""
        if not self._started or self._links is None:
            return
        processes = tuple(
            ProcessRecord(name=name, pid=each.pid, restarts=each.restarts, log=str(each.spec.log_path))
            for name, each in self._supervisor.processes.items()
        )
        record = msgspec.structs.replace(
            self._home.record,
            processes=processes,
            site_dirs={name: str(self._state.root / "sites" / name) for name in self.sites},
            links_url=self._links.admin_url,
        )
        self._state.write_run(record)


async def _all(starting: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them at once; the first error ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in starting:
                group.create_task(each)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
