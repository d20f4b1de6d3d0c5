"""TokenFleet as a policy under test: the live decision code of its services, wired as the services wire it.

Nothing is decided here. FleetMind places where there are several sites, SLOMax classifies, queues and admits,
TokenPilot chooses; one fleet view, load view and prefix index per site, one capacity roll-up per site and second.
What the services do over the bus happens at once here: a decision takes no time.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleetmind.policy.placement import NoPlace, SiteView, place
from lab.sim.api import Arrival, Decision, Hold, Refuse, Released, Route
from slomax.policy.admission import Keep
from slomax.policy.admission import Refuse as Refusal
from slomax.policy.classify import entry_of
from slomax.policy.entry import Entry
from slomax.policy.pool import PoolAdmission
from telemetry_collector.policy.rollup import gone, roll_up
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.fleet_view import FleetView
from tokenpilot.policy.assumed_cache import AssumedCaches
from tokenpilot.policy.pilot import Pilot
from tokenpilot.policy.prefix_index import PrefixIndex

ROLL_UP_S = 1.0
"""How often a site publishes its capacity."""


class _Site:
    """The deciders of one site and what they know."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.fleet = FleetView()
        self.index = PrefixIndex()
        self.assumed = AssumedCaches(self.index)
        self.pilots: dict[str, Pilot] = defaultdict(Pilot)
        self.admissions: dict[str, PoolAdmission] = {}
        self.pilot_of: dict[str, Pilot] = {}
        self.rolled_up_s = -ROLL_UP_S
        self.published: frozenset[str] = frozenset()

    def admission(self, pool: str) -> PoolAdmission:
        admission = self.admissions.get(pool)
        if admission is None:
            pilot = self.pilots[pool]
            admission = self.admissions[pool] = PoolAdmission(pilot.load, pilot.lengths)
        return admission


@dataclass(frozen=True, slots=True)
class _Held:
    """A request in a queue of SLOMax's."""

    arrival: Arrival
    site: _Site
    pool: str


class TokenFleetPolicy:
    """TokenFleet's deciders.

    Args:
        seed: for the draws that break ties.
        policy: the live configuration in force.
    """

    def __init__(self, seed: int, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._random = random.Random(seed)  # noqa: S311 - breaks ties, guards nothing
        self._sites: dict[str, _Site] = {}
        self._site_of: dict[str, _Site] = {}
        self._sites_view = SiteView()
        self._attempts: dict[str, int] = {}
        self._held: dict[str, _Held] = {}
        self._admission_of: dict[str, PoolAdmission] = {}
        self._adjustments: list[tuple[float, str, float, float]] = []
        self._tenants: Mapping[str, Tenant] = {}
        self.degraded: set[str] = set()
        """Requests that were moved to the batch class because they were late."""

    def network(self, round_trip_s: Mapping[tuple[str, str], float], tenants: Mapping[str, Tenant]) -> None:
        self._tenants = tenants

    def joined(self, record: InstanceRecord, now_s: float) -> None:
        site = self._sites.get(record.site)
        if site is None:
            site = self._sites[record.site] = _Site(record.site)
        self._site_of[record.instance] = site
        site.fleet.apply_record(record.instance, record, now_s)
        pilot = site.pilot_of[record.instance] = site.pilots[record.pool]
        pilot.joined(record)

    def left(self, instance: str, now_s: float) -> None:
        site = self._site_of[instance]
        site.fleet.apply_record(instance, None, now_s)
        site.index.drop(instance)
        site.pilot_of[instance].left(instance)
        site.assumed.left(instance)

    def reading(self, state: InstanceState, now_s: float) -> None:
        site = self._sites[state.site]
        site.fleet.apply_state(state, now_s)
        site.pilot_of[state.instance].reading(state, state.time_ns / 1e9, now_s)

    def blocks(self, instance: str, stored: Sequence[int], removed: Sequence[int], now_s: float) -> None:
        index = self._site_of[instance].index
        if removed:
            index.remove(instance, removed)
        if stored:
            index.store(instance, stored)

    def decide(self, arrival: Arrival, now_s: float) -> Decision:
        spec = arrival.spec
        self._publish_capacity(now_s)
        self._adjust(now_s)
        tenant = self._tenants.get(arrival.tenant, Tenant(tenant=arrival.tenant))
        placed = place(spec, arrival.request_id, tenant, self._sites_view, now_s)
        if isinstance(placed, NoPlace):
            return Refuse(placed.status, placed.reason)
        site = self._sites[placed.site]
        attempt = self._attempts.get(arrival.request_id, 0) + 1
        self._attempts[arrival.request_id] = attempt
        entry = entry_of(
            arrival.request_id,
            attempt,
            spec,
            tenant,
            self._policy,
            arrival.time_s,
            now_s,
            spec.deadline_ns / 1e9 - now_s,
        )
        admission = site.admission(placed.pool)
        self._admission_of[arrival.request_id] = admission
        ready = site.fleet.ready(placed.pool, now_s)
        verdict = admission.submit(entry, ready, self._policy, now_s)
        if isinstance(verdict, Keep):
            self._held[arrival.request_id] = _Held(arrival, site, placed.pool)
            return Hold()
        if isinstance(verdict, Refusal):
            return Refuse(verdict.status, verdict.reason)
        return self._route(arrival, entry, site, placed.pool, now_s)

    def release(self, now_s: float) -> Iterable[Released]:
        for site in self._sites.values():
            for pool, admission in site.admissions.items():
                if not len(admission):
                    continue
                ready = site.fleet.ready(pool, now_s)
                for released in admission.release(ready, self._policy, now_s):
                    request_id = released.entry.request_id
                    held = self._held.pop(request_id)
                    if isinstance(released.verdict, Refusal):
                        refusal = Refuse(released.verdict.status, released.verdict.reason)
                        yield Released(request_id, refusal)
                    else:
                        routed = self._route(held.arrival, released.entry, site, pool, now_s)
                        yield Released(request_id, routed)

    def _route(self, arrival: Arrival, entry: Entry, site: _Site, pool: str, now_s: float) -> Route | Refuse:
        decision = site.pilots[pool].decide(
            arrival.request_id,
            entry.attempt,
            arrival.spec,
            entry.objective,
            arrival.blocks,
            site.fleet.ready(pool, now_s),
            site.index.match(arrival.blocks),
            now_s,
            kept_free=site.admission(pool).kept_free(entry),
            routing=self._policy.routing,
            draw=self._random.random(),
        )
        if entry.degraded_from is not None:
            self.degraded.add(arrival.request_id)
        if decision is None:
            return Refuse(503, "no_usable_instance")
        record = decision.choice.instance.record
        site.assumed.routed(record, arrival.blocks)
        return Route(
            record.instance,
            decision.ttft_s,
            predicted_ttft_p90_s=decision.ttft_p90_s,
            predicted_tpot_s=decision.tpot_s,
            predicted_tpot_p90_s=decision.tpot_p90_s,
        )

    @property
    def adjustments(self) -> list[tuple[float, str, float, float]]:
        """What feedback changed: `(time, knob, before, after)`."""
        return self._adjustments

    def first_token(self, request_id: str, instance: str, now_s: float) -> None:
        self._site_of[instance].pilot_of[instance].first_token(request_id, now_s)
        if (admission := self._admission_of.get(request_id)) is not None:
            admission.first_token(request_id, now_s)

    def ended(self, request_id: str, instance: str, output_tokens: int, now_s: float) -> None:
        pilot = self._site_of[instance].pilot_of[instance]
        attempt = self._attempts.get(request_id, 1)
        completed = output_tokens > 0
        pilot.ended(request_id, attempt, now_s, completed=completed, output_tokens=output_tokens)
        if (admission := self._admission_of.pop(request_id, None)) is not None:
            admission.ended(request_id, now_s, completed=completed, output_tokens=output_tokens)

    def _adjust(self, now_s: float) -> None:
        """Feedback, as often as the service asks for it."""
        for site in self._sites.values():
            for admission in site.admissions.values():
                for one in admission.adjust(self._policy, now_s):
                    knob = f"{one.request_class}.{one.knob}" if one.request_class else one.knob
                    self._adjustments.append((now_s, knob, one.before, one.after))

    def _publish_capacity(self, now_s: float) -> None:
        """Each site's roll-up, about once a second: what the entries know of the sites."""
        for site in self._sites.values():
            if now_s - site.rolled_up_s < ROLL_UP_S:
                continue
            site.rolled_up_s = now_s
            time_ns = int(now_s * 1e9)
            pools = roll_up(site.fleet, site.site, now_s, time_ns)
            names = frozenset(capacity.pool for capacity in pools)
            for pool in sorted(site.published - names):
                self._sites_view.apply(gone(pool, site.site, time_ns), now_s)
            for capacity in pools:
                self._sites_view.apply(capacity, now_s)
            site.published = names
