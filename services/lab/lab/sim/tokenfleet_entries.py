"""FleetMind of every site under the simulator: what each entry hears of the others, when, and what it makes of it.

The services' own policies decide. What they say to each other travels as long as the network between their sites takes, and
is as old when it arrives as it is in production: summaries and asks once a second.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleetmind.policy.eligibility import NoPlace
from fleetmind.policy.granting import Granter
from fleetmind.policy.leases import ASK_EVERY_S
from fleetmind.policy.placement import Placement, Placer
from lab.sim.api import Arrival
from lab.sim.site_faults import NO_FAULTS, SiteFaults
from tokenfleet.contracts.control import Capacity
from tokenfleet.contracts.policy import Fleet, Tenant
from tokenfleet.contracts.sites import LeaseAsk, LeaseGrant, SiteSummary

WINDOW_S = 10.0
"""As long as the ledger's goodput windows."""


@dataclass(slots=True)
class _Window:
    """Outcomes of a pool."""

    met: int = 0
    ended: int = 0


@dataclass(slots=True)
class _Entry:
    """FleetMind at one site."""

    placer: Placer
    granters: dict[str, Granter] = field(default_factory=dict[str, Granter])
    windows: dict[str, _Window] = field(default_factory=lambda: defaultdict(_Window))


class Entries:
    """All sites' FleetMinds, and the network between them.

    Args:
        fleet: the policy in force.
        faults: what goes wrong between the sites.
    """

    def __init__(self, fleet: Fleet, faults: SiteFaults = NO_FAULTS) -> None:
        self._fleet = fleet
        self._faults = faults
        self._restarts = list(faults.restarts)
        self._round_trip_s: Mapping[tuple[str, str], float] = {}
        self._entries: dict[str, _Entry] = {}
        self._latest: dict[tuple[str, str], tuple[Capacity, SiteSummary | None]] = {}
        self._mail: list[tuple[float, int, Callable[[float], None]]] = []
        self._sent = 0
        self._window_s = 0.0
        self._asked_s = -ASK_EVERY_S

    def network(self, round_trip_s: Mapping[tuple[str, str], float]) -> None:
        """Round trips between sites, in both orders."""
        self._round_trip_s = round_trip_s

    def one_way_s(self, site: str, other: str) -> float:
        return 0.0 if site == other else self._round_trip_s.get((site, other), 0.0) / 2

    def cut(self, site: str, other: str, now_s: float) -> bool:
        """Whether nothing gets from one site to another."""
        return self._faults.cut(site, other, now_s)

    def place(
        self, arrival: Arrival, tenant: Tenant, now_s: float, avoid: Sequence[str] = ()
    ) -> Placement | NoPlace | None:
        """What FleetMind at the request's entry decides; None while it has heard of no pool at all, and is silent.

        Args:
            arrival: the request.
            tenant: whose it is.
            now_s: virtual seconds.
            avoid: sites that did not answer it before.
        """
        self._deliver(now_s)
        site = arrival.spec.entry_site
        placer = self._entry(site, now_s).placer
        if not len(placer.sites):
            return None
        return placer.place(
            arrival.spec,
            arrival.request_id,
            self._faults.tenant(site, tenant, now_s),
            arrival.blocks,
            self._faults.fleet(site, self._fleet, now_s),
            self._clock_s(site, now_s),
            avoid,
        )

    def say(self, site: str, pools: Sequence[tuple[Capacity, SiteSummary | None]], now_s: float) -> None:
        """A site says how its pools are; every entry hears it after a while, and asks it for leases."""
        self._entry(site, now_s)
        for capacity, summary in pools:
            self._latest[site, capacity.pool] = capacity, summary
            for name in list(self._entries):
                self._tell(name, site, capacity, summary, now_s)
        if now_s - self._window_s >= WINDOW_S:
            self._window_s = now_s
            for entry in self._entries.values():
                for pool, window in entry.windows.items():
                    if pool in entry.granters:
                        entry.granters[pool].limit.window(window.met, window.ended)
                entry.windows.clear()

    def say_here(self, summary: SiteSummary, now_s: float) -> None:
        """A site's own FleetMind hears of a pool's load between two times that all hear of it."""
        placer = self._entry(summary.site, now_s).placer
        placer.sites.summarised(summary, self._clock_s(summary.site, now_s))

    def ask(self, now_s: float) -> None:
        """Each entry asks the other sites for leases, when it is time."""
        if now_s - self._asked_s < ASK_EVERY_S:
            return
        self._asked_s = now_s
        for site, pool in list(self._latest):
            for name, entry in list(self._entries.items()):
                if name != site:
                    self._ask(name, entry, site, pool, now_s)

    def arrived(self, placement: Placement, now_s: float) -> None:
        """A placed request reached its site."""
        granter = self._entry(placement.site, now_s).granters.get(placement.pool)
        if granter is not None:
            granter.placed(placement.leases, self._clock_s(placement.site, now_s))

    def refused(self, entry_site: str, placement: Placement, now_s: float) -> None:
        """The site's own deciders refused what an entry placed there, or did not answer."""
        if placement.site != entry_site:
            placer = self._entry(entry_site, now_s).placer
            placer.backoffs[placement.site, placement.pool].bad(self._clock_s(entry_site, now_s))

    def first_token(self, entry_site: str, placement: Placement, ttft_s: float, now_s: float) -> None:
        """A diverted request's first token came."""
        if placement.site != entry_site and placement.predicted_ttft_s is not None:
            backoff = self._entry(entry_site, now_s).placer.backoffs[placement.site, placement.pool]
            backoff.first_token(ttft_s, placement.predicted_ttft_s, self._clock_s(entry_site, now_s))

    def ended(self, site: str, pool: str, *, met: bool, now_s: float) -> None:
        """A request that a site served is over."""
        window = self._entry(site, now_s).windows[pool]
        window.ended += 1
        window.met += met

    def _clock_s(self, site: str, now_s: float) -> float:
        return self._faults.clock_s(site, now_s)

    def _entry(self, site: str, now_s: float) -> _Entry:
        while self._restarts and self._restarts[0].at_s <= now_s:
            restarted = self._restarts.pop(0).site
            if restarted in self._entries:
                self._entries[restarted] = self._begun(restarted)
        entry = self._entries.get(site)
        if entry is None:
            entry = self._entries[site] = self._begun(site)
            for (origin, _), (capacity, summary) in self._latest.items():
                self._tell(site, origin, capacity, summary, now_s)
            self._deliver(now_s)
        return entry

    def _begun(self, site: str) -> _Entry:
        entry = _Entry(Placer(site))
        for other, round_trip_s in self._round_trip_s.items():
            if other[0] == site:
                entry.placer.measured_s[other[1]] = round_trip_s
        return entry

    def _tell(
        self, to: str, site: str, capacity: Capacity, summary: SiteSummary | None, now_s: float
    ) -> None:
        def arrive(at_s: float) -> None:
            entry, clock_s = self._entries[to], self._clock_s(to, at_s)
            entry.placer.sites.apply(capacity, clock_s)
            if summary is None:
                return
            entry.placer.sites.summarised(summary, clock_s)
            pool = entry.placer.sites.get(site, capacity.pool)
            if to == site and pool is not None:
                granter = entry.granters.setdefault(capacity.pool, Granter(clock_s))
                granter.heard(pool)

        late_s = self._faults.late_s(site, now_s) if to != site else 0.0
        self._send(site, to, now_s + late_s, arrive)

    def _ask(self, name: str, entry: _Entry, site: str, pool: str, now_s: float) -> None:
        placer = entry.placer
        ask = LeaseAsk(
            holder=name,
            site=name,
            pool=pool,
            sequence=placer.wallet.ask(site, pool, self._clock_s(name, now_s)),
            wanted_s=placer.wanted(site, pool),
            returned=placer.wallet.give_back(site, pool, now_s),
        )

        def grant_arrives(grant: LeaseGrant) -> Callable[[float], None]:
            return lambda at_s: void(
                self._entries[name].placer.wallet.receive(grant, self._clock_s(name, at_s))
            )

        def ask_arrives(at_s: float) -> None:
            granting = self._entries[site]
            told = granting.placer.sites.get(site, pool)
            granter = granting.granters.get(pool)
            if told is None or granter is None:
                return
            fleet = self._faults.fleet(site, self._fleet, at_s)
            grant = granter.answer(ask, told, granting.placer.sites, fleet, self._clock_s(site, at_s))
            self._send(site, name, at_s, grant_arrives(grant))

        self._send(name, site, now_s, ask_arrives)

    def _send(self, site: str, other: str, now_s: float, handler: Callable[[float], None]) -> None:
        """What leaves a site now gets to another, unless the link is cut then."""
        arrives_s = now_s + self.one_way_s(site, other)
        if self.cut(site, other, arrives_s):
            return
        self._sent += 1
        heapq.heappush(self._mail, (arrives_s, self._sent, handler))

    def _deliver(self, now_s: float) -> None:
        while self._mail and self._mail[0][0] <= now_s:
            arrives_s, _, handler = heapq.heappop(self._mail)
            handler(arrives_s)


def void(_: object) -> None:
    """For what is received only for its effect."""
