"""NATS servers of several sites, joined by exchanges over links that a test can cut; no services."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from console.embedded.exchange import EmbeddedExchange
from console.embedded.nats import USERS, EmbeddedNats, NatsSite
from console.process import ManagedProcess
from console.sites.joined import until_joined
from console.sites.options import parse_sites
from console.sites.plan import LinksPlan, plan_ports
from console.sites.relay import Link, LinkState, dial_port
from tokenfleet.bus import Bus
from tokenfleet.settings import Settings


@dataclass
class LinkedSites:
    """The servers by site, and the links by their two sites."""

    names: tuple[str, ...]
    servers: dict[str, EmbeddedNats]
    processes: dict[str, ManagedProcess]
    links: dict[tuple[str, str], Link]
    passwords: dict[str, str]

    def settings(self, site: str, user: str = "operator", **values: Any) -> Settings:
        """How a process of a site connects."""
        common: dict[str, Any] = {"site": site, "sites": self.names, "nats_url": self.servers[site].url}
        password = SecretStr(self.passwords[user])
        return Settings(**common | values, nats_user=user, nats_password=password)

    async def bus(self, site: str, user: str = "operator", **values: Any) -> Bus:
        return await Bus.connect(self.settings(site, user, **values), "test")

    def set_links(self, site: str, state: LinkState) -> None:
        """Cut a site off from every other, or join it."""
        for pair, link in self.links.items():
            if site in pair:
                link.set_state(state)


async def _links(plan: LinksPlan, options_links: dict[tuple[str, str], Link]) -> None:
    for planned in plan.links:
        link = options_links[planned.sites]
        await link.listen(planned.route_port, forward=False, dial=dial_port(planned.route_to))


@asynccontextmanager
async def linked_sites(folder: Path, sites: str = "A=0,B=0,C=0") -> AsyncIterator[LinkedSites]:
    """Start them; the first site is the home."""
    options = parse_sites(sites, ["A-B=4ms"])
    ports, plan = plan_ports(options)
    links = {pair: Link(spec) for pair, spec in options.links.items()}
    await _links(plan, links)
    passwords = {user: f"p{secrets.token_hex(16)}" for user in (*USERS, "site", "exchange")}
    servers: dict[str, EmbeddedNats] = {}
    processes: dict[str, ManagedProcess] = {}
    try:
        for name in options.names:
            exchange = EmbeddedExchange(
                name,
                folder / f"exchange-{name}",
                leaf_port=ports[name].leaf,
                route_port=ports[name].route,
                peer_ports=plan.routes(name),
                site_password=passwords["site"],
                exchange_password=passwords["exchange"],
            )
            server = EmbeddedNats(folder / f"nats-{name}", passwords, NatsSite(name, exchange.leaf_url))
            servers[name] = server
            for key, spec in (
                (f"exchange-{name}", exchange.spec(folder / f"exchange-{name}.log")),
                (name, server.spec(folder / f"nats-{name}.log")),
            ):
                processes[key] = ManagedProcess(spec, print)
                await processes[key].start()
        linked = LinkedSites(options.names, servers, processes, links, passwords)
        await until_joined(linked.settings(options.names[0]))
        yield linked
    finally:
        for process in reversed(list(processes.values())):
            await process.stop()
        for link in links.values():
            link.set_state("cut")
