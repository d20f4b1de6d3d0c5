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
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
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

    def place(self, arrival: Arrival, tenant: Tenant, now_s: float) -> Placement | NoPlace:
        """What FleetMind at the request's entry decides."""
        self._deliver(now_s)
        placer = self._entry(arrival.spec.entry_site, now_s).placer
        return placer.place(arrival.spec, arrival.request_id, tenant, arrival.blocks, self._fleet, now_s)

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
        self._entry(summary.site, now_s).placer.sites.summarised(summary, now_s)

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
            granter.placed(placement.leases, now_s)

    def refused(self, entry_site: str, placement: Placement, now_s: float) -> None:
        """The site's own deciders refused what an entry placed there."""
        if placement.site != entry_site:
            placer = self._entry(entry_site, now_s).placer
            placer.backoffs[placement.site, placement.pool].bad(now_s)

    def first_token(self, entry_site: str, placement: Placement, ttft_s: float, now_s: float) -> None:
        """A diverted request's first token came."""
        if placement.site != entry_site and placement.predicted_ttft_s is not None:
            backoff = self._entry(entry_site, now_s).placer.backoffs[placement.site, placement.pool]
            backoff.first_token(ttft_s, placement.predicted_ttft_s, now_s)

    def ended(self, site: str, pool: str, *, met: bool, now_s: float) -> None:
        """A request that a site served is over."""
        window = self._entry(site, now_s).windows[pool]
        window.ended += 1
        window.met += met

    def _entry(self, site: str, now_s: float) -> _Entry:
        entry = self._entries.get(site)
        if entry is None:
            entry = self._entries[site] = _Entry(Placer(site))
            for other, round_trip_s in self._round_trip_s.items():
                if other[0] == site:
                    entry.placer.measured_s[other[1]] = round_trip_s
            for (origin, _), (capacity, summary) in self._latest.items():
                self._tell(site, origin, capacity, summary, now_s)
            self._deliver(now_s)
        return entry

    def _tell(
        self, to: str, site: str, capacity: Capacity, summary: SiteSummary | None, now_s: float
    ) -> None:
        entry = self._entries[to]

        def arrive(at_s: float) -> None:
            entry.placer.sites.apply(capacity, at_s)
            if summary is None:
                return
            entry.placer.sites.summarised(summary, at_s)
            pool = entry.placer.sites.get(site, capacity.pool)
            if to == site and pool is not None:
                granter = entry.granters.setdefault(capacity.pool, Granter(at_s))
                granter.heard(pool)

        self._send(now_s + self.one_way_s(site, to), arrive)

    def _ask(self, name: str, entry: _Entry, site: str, pool: str, now_s: float) -> None:
        placer = entry.placer
        ask = LeaseAsk(
            holder=name,
            site=name,
            pool=pool,
            sequence=placer.wallet.ask(site, pool, now_s),
            wanted_s=placer.wanted(site, pool),
            returned=placer.wallet.give_back(site, pool, now_s),
        )
        granting = self._entries[site]

        def grant_arrives(grant: LeaseGrant) -> Callable[[float], None]:
            return lambda at_s: void(placer.wallet.receive(grant, at_s))

        def ask_arrives(at_s: float) -> None:
            told = granting.placer.sites.get(site, pool)
            granter = granting.granters.get(pool)
            if told is None or granter is None:
                return
            grant = granter.answer(ask, told, granting.placer.sites, self._fleet, at_s)
            self._send(at_s + self.one_way_s(site, name), grant_arrives(grant))

        self._send(now_s + self.one_way_s(name, site), ask_arrives)

    def _send(self, arrives_s: float, handler: Callable[[float], None]) -> None:
        self._sent += 1
        heapq.heappush(self._mail, (arrives_s, self._sent, handler))

    def _deliver(self, now_s: float) -> None:
        while self._mail and self._mail[0][0] <= now_s:
            arrives_s, _, handler = heapq.heappop(self._mail)
            handler(arrives_s)


def void(_: object) -> None:
    """For what is received only for its effect."""
