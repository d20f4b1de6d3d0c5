"""TokenFleet's deciders of one site under the simulator, wired as the services wire them."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from slomax.policy.pool import PoolAdmission
from telemetry_collector.policy.rollup import gone, roll_up
from tokenfleet.contracts.control import Capacity
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.contracts.sites import SiteSummary
from tokenfleet.fleet_view import FleetView
from tokenpilot.policy.assumed_cache import AssumedCaches
from tokenpilot.policy.pilot import Pilot
from tokenpilot.policy.prefix_index import PrefixIndex

SAY_EVERY_S = 1.0
"""How often a site tells of itself,"""
SAY_HERE_EVERY_S = 0.2
"""and how often its own FleetMind hears of its load."""


class Site:
    """The deciders of one site and what they know."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.fleet = FleetView()
        self.index = PrefixIndex()
        self.assumed = AssumedCaches(self.index)
        self.pilots: dict[str, Pilot] = defaultdict(Pilot)
        self.admissions: dict[str, PoolAdmission] = {}
        self.pilot_of: dict[str, Pilot] = {}
        self._said_s = -SAY_EVERY_S
        self._said_here_s = -SAY_HERE_EVERY_S
        self._said: frozenset[str] = frozenset()

    def joined(self, record: InstanceRecord, now_s: float) -> None:
        self.fleet.apply_record(record.instance, record, now_s)
        pilot = self.pilot_of[record.instance] = self.pilots[record.pool]
        pilot.joined(record)

    def left(self, instance: str, now_s: float) -> None:
        self.fleet.apply_record(instance, None, now_s)
        self.index.drop(instance)
        self.pilot_of[instance].left(instance)
        self.assumed.left(instance)

    def reading(self, state: InstanceState, now_s: float) -> None:
        self.fleet.apply_state(state, now_s)
        self.pilot_of[state.instance].reading(state, state.time_ns / 1e9, now_s)

    def admission(self, pool: str) -> PoolAdmission:
        admission = self.admissions.get(pool)
        if admission is None:
            pilot = self.pilots[pool]
            admission = self.admissions[pool] = PoolAdmission(pilot.load, pilot.lengths)
        return admission

    def sayings(self, now_s: float) -> list[tuple[Capacity, SiteSummary | None]] | None:
        """What the site says of its pools now: capacity and load; None while it is not time."""
        if now_s - self._said_s < SAY_EVERY_S:
            return None
        self._said_s = now_s
        time_ns = int(now_s * 1e9)
        pools = roll_up(self.fleet, self.site, now_s, time_ns)
        names = frozenset(capacity.pool for capacity in pools)
        left = [(gone(pool, self.site, time_ns), None) for pool in sorted(self._said - names)]
        self._said = names
        self._said_here_s = now_s
        told_of = self.index.told_of
        return [*left, *((capacity, self._summary(capacity.pool, told_of, now_s)) for capacity in pools)]

    def loads(self, now_s: float) -> list[SiteSummary]:
        """The loads of its pools for its own FleetMind; empty while it is not time."""
        if now_s - self._said_here_s < SAY_HERE_EVERY_S:
            return []
        self._said_here_s = now_s
        return [self._summary(pool, None, now_s) for pool in self.fleet.pools()]

    def _summary(
        self, pool: str, told_of: Callable[[str], Iterable[int]] | None, now_s: float
    ) -> SiteSummary:
        return self.pilots[pool].summary(
            pool,
            self.site,
            self.fleet.ready(pool, now_s),
            told_of,
            self.admission(pool).waiting_s(),
            now_s,
            int(now_s * 1e9),
        )
