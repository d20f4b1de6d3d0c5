"""Baselines over several sites that choose by requests in flight, and what all multi-site baselines share."""

from collections.abc import Mapping, Sequence

from lab.baselines.common import Router
from lab.sim.api import Arrival
from tokenfleet.contracts.policy import Tenant


class SiteRouter(Router):
    """A baseline that knows sites and the round trips between them.

    Which sites a tenant may use needs no rule here: the simulator excludes the instances of the others.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._round_trip_s: Mapping[tuple[str, str], float] = {}

    def network(self, round_trip_s: Mapping[tuple[str, str], float], tenants: Mapping[str, Tenant]) -> None:
        self._round_trip_s = dict(round_trip_s)

    def site(self, instance: str) -> str:
        return self.loads[instance].record.site

    def round_trip_s(self, entry_site: str, instance: str) -> float:
        """Between a site and an instance; nothing within a site."""
        site = self.site(instance)
        return 0.0 if site == entry_site else self._round_trip_s.get((entry_site, site), 0.0)

    def available(self, instance: str) -> bool:
        """Whether its last reading showed no waiting request (SkyWalker probes every 100 ms: the readings)."""
        return self.loads[instance].waiting == 0


class RegionLocal(SiteRouter):
    """Least requests at the site where the request entered.

    The usual deployment: one balancer for each region and no traffic between them. Hole: a site without a usable
    instance sends to the nearest site that has one.
    """

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        entry = arrival.spec.entry_site
        local = [name for name in usable if self.site(name) == entry]
        if not local:
            nearest_s = min(self.round_trip_s(entry, name) for name in usable)
            local = [name for name in usable if self.round_trip_s(entry, name) == nearest_s]
        return self.least_requests(local)


class GlobalLeastLoad(SiteRouter):
    """Least requests over all sites, as one global balancer would decide; distance plays no part."""

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        return self.least_requests(usable)
