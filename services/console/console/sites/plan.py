"""Which local ports the exchanges and the links between sites take."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from console.preflight import free_port
from console.sites.options import Pair, SitesOptions

HOST = "127.0.0.1"


class ExchangePorts(msgspec.Struct, frozen=True, kw_only=True):
    """Where one site's exchange listens."""

    leaf: int
    route: int


class LinkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One link: how far, how wide, and where it takes connections."""

    sites: Pair
    round_trip_s: float
    bytes_per_s: float | None
    route_port: int
    """At which the second site's exchange finds the first one's."""
    route_to: int
    proxy_ports: dict[str, int]
    """By site: the HTTP proxy through which its ingress reaches the other site's engines."""

    @property
    def name(self) -> str:
        return "-".join(self.sites)


class LinksPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that is all the links is told."""

    admin_port: int
    links: tuple[LinkPlan, ...]

    @property
    def admin_url(self) -> str:
        return f"http://{HOST}:{self.admin_port}"

    def proxies(self, site: str) -> dict[str, str]:
        """The proxies of one site, by the site they lead to."""
        return {
            other: f"http://{HOST}:{link.proxy_ports[site]}"
            for link in self.links
            if site in link.sites
            for other in link.sites
            if other != site
        }

    def routes(self, site: str) -> list[int]:
        """The ports at which a site's exchange calls the exchanges of the sites before it."""
        return [link.route_port for link in self.links if link.sites[1] == site]


def plan_ports(options: SitesOptions) -> tuple[Mapping[str, ExchangePorts], LinksPlan]:
    """Free ports for the exchange of each site, and for the links."""
    taken: set[int] = set()

    def port() -> int:
        found = free_port(HOST, taken)
        taken.add(found)
        return found

    ports = {name: ExchangePorts(leaf=port(), route=port()) for name in options.names}
    links = tuple(
        LinkPlan(
            sites=pair,
            round_trip_s=spec.round_trip_s,
            bytes_per_s=spec.bytes_per_s,
            route_port=port(),
            route_to=ports[pair[0]].route,
            proxy_ports={site: port() for site in pair},
        )
        for pair, spec in options.links.items()
    )
    return ports, LinksPlan(admin_port=port(), links=links)


def write_plan(path: Path, plan: LinksPlan) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
