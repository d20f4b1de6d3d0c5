"""TokenFleet as a policy under test: the live decision code of its services, wired as the services wire it.

Nothing is decided here. FleetMind at the entry places, SLOMax at the chosen site classifies, queues and admits, TokenPilot there
chooses; one fleet view, load view and prefix index per site. What the services of one site do over the bus happens at once
here; between sites everything takes as long as the network does.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleetmind.policy.eligibility import NoPlace
from fleetmind.policy.placement import Placement
from lab.baselines.common import abandoned
from lab.sim.api import Arrival, Decision, Hold, Refuse, Released, Route
from lab.sim.site_faults import NO_FAULTS, SiteFaults
from lab.sim.tokenfleet_entries import Entries
from lab.sim.tokenfleet_site import Site
from slomax.policy.admission import Keep
from slomax.policy.admission import Refuse as Refusal
from slomax.policy.classify import entry_of
from slomax.policy.entry import Entry
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.contracts.policy import Policy, Tenant

ASK_AGAIN_S = 1.0
"""As ingress does when nobody has decided."""


@dataclass(slots=True)
class _Request:
    """One request on its way through the deciders."""

    arrival: Arrival
    attempt: int
    tenant: Tenant
    placed: Placement | None = None
    """None: FleetMind was silent."""
    lost: bool = False
    """Its placement does not reach its site."""
    arrives_s: float = 0.0
    """When its placement is known at its site, or it is asked for again."""
    silent: tuple[str, ...] = ()
    """Sites that did not answer it."""
    entry: Entry | None = None
    """As SLOMax has it; None while it is under way."""
    first_token_s: float | None = None

    @property
    def placement(self) -> Placement:
        assert self.placed is not None, "at a site there is nothing that was not placed"
        return self.placed


class TokenFleetPolicy:
    """TokenFleet's deciders.

    Args:
        seed: for the draws that break ties.
        policy: the live configuration in force.
        faults: what goes wrong between the sites.
        on_placed: told of every placement.
    """

    judges_residency = True

    def __init__(
        self,
        seed: int,
        policy: Policy | None = None,
        faults: SiteFaults = NO_FAULTS,
        on_placed: Callable[[Arrival, Placement], None] | None = None,
    ) -> None:
        self._on_placed = on_placed
        self._policy = policy or Policy()
        self._random = random.Random(seed)  # noqa: S311 - breaks ties, guards nothing
        self._sites: dict[str, Site] = {}
        self._site_of: dict[str, Site] = {}
        self._entries = Entries(self._policy.fleet, faults)
        self._requests: dict[str, _Request] = {}
        self._under_way: dict[str, _Request] = {}
        self._adjustments: list[tuple[float, str, float, float]] = []
        self._tenants: Mapping[str, Tenant] = {}
        self.degraded: set[str] = set()
        """Requests that were moved to the batch class because they were late."""

    def network(self, round_trip_s: Mapping[tuple[str, str], float], tenants: Mapping[str, Tenant]) -> None:
        self._tenants = tenants
        self._entries.network(round_trip_s)

    def joined(self, record: InstanceRecord, now_s: float) -> None:
        site = self._sites.get(record.site)
        if site is None:
            site = self._sites[record.site] = Site(record.site)
        self._site_of[record.instance] = site
        site.joined(record, now_s)

    def left(self, instance: str, now_s: float) -> None:
        self._site_of[instance].left(instance, now_s)

    def reading(self, state: InstanceState, now_s: float) -> None:
        self._sites[state.site].reading(state, now_s)

    def blocks(self, instance: str, stored: Sequence[int], removed: Sequence[int], now_s: float) -> None:
        index = self._site_of[instance].index
        if removed:
            index.remove(instance, removed)
        if stored:
            index.store(instance, stored)

    def decide(self, arrival: Arrival, now_s: float) -> Decision:
        self._now_and_then(now_s)
        tenant = self._tenants.get(arrival.tenant, Tenant(tenant=arrival.tenant))
        before = self._requests.get(arrival.request_id)
        request = _Request(arrival, before.attempt + 1 if before else 1, tenant)
        return self._place(request, now_s)

    def _place(self, request: _Request, now_s: float) -> Decision:
        arrival, entry_site = request.arrival, request.arrival.spec.entry_site
        placed = self._entries.place(arrival, request.tenant, now_s, request.silent)
        if isinstance(placed, NoPlace):
            return Refuse(placed.status, placed.reason)
        self._requests[arrival.request_id] = request
        request.placed = placed
        if placed is None:
            request.lost, request.arrives_s = True, now_s + ASK_AGAIN_S
            self._under_way[arrival.request_id] = request
            return Hold(request.arrives_s)
        if self._on_placed:
            self._on_placed(arrival, placed)
        request.arrives_s = now_s + self._entries.one_way_s(entry_site, placed.site)
        request.lost = self._entries.cut(entry_site, placed.site, request.arrives_s)
        if request.lost:
            request.arrives_s = now_s + ASK_AGAIN_S
        if request.arrives_s > now_s:
            self._under_way[arrival.request_id] = request
            return Hold(request.arrives_s)
        return self._submit(request, placed, now_s)

    def release(self, now_s: float) -> Iterable[Released]:
        yield from self._arriving(now_s)
        for site in self._sites.values():
            for pool, admission in site.admissions.items():
                if not len(admission):
                    continue
                ready = site.fleet.ready(pool, now_s)
                for released in admission.release(ready, self._policy, now_s):
                    request_id = released.entry.request_id
                    request = self._requests[request_id]
                    if isinstance(released.verdict, Refusal):
                        yield Released(request_id, self._refused(request, released.verdict, now_s))
                    else:
                        yield Released(request_id, self._route(request, released.entry, now_s))

    def _arriving(self, now_s: float) -> Iterable[Released]:
        """Placements that have reached their sites, or have not and are asked for again."""
        there = [one for one in self._under_way.values() if one.arrives_s <= now_s]
        for request in there:
            del self._under_way[request.arrival.request_id]
            if abandoned(request.arrival, now_s):
                continue
            decision = self._arrive(request, now_s)
            if not isinstance(decision, Hold):
                yield Released(request.arrival.request_id, decision)

    def _arrive(self, request: _Request, now_s: float) -> Decision:
        placed = request.placed
        if placed is not None and not request.lost:
            return self._submit(request, placed, now_s)
        if placed is not None:
            self._entries.refused(request.arrival.spec.entry_site, placed, now_s)
            request.silent = (*request.silent, placed.site)
        return self._place(request, now_s)

    def _submit(self, request: _Request, placement: Placement, now_s: float) -> Decision:
        """A placed request is at its site: SLOMax decides."""
        spec = request.arrival.spec
        self._entries.arrived(placement, now_s)
        site = self._sites[placement.site]
        entry = entry_of(
            request.arrival.request_id,
            request.attempt,
            spec,
            request.tenant,
            self._policy,
            request.arrival.time_s,
            now_s,
            spec.deadline_ns / 1e9 - now_s,
        )
        request.entry = entry
        ready = site.fleet.ready(placement.pool, now_s)
        verdict = site.admission(placement.pool).submit(entry, ready, self._policy, now_s)
        if isinstance(verdict, Keep):
            return Hold()
        if isinstance(verdict, Refusal):
            return self._refused(request, verdict, now_s)
        return self._route(request, entry, now_s)

    def _refused(self, request: _Request, refusal: Refusal, now_s: float) -> Refuse:
        self._entries.refused(request.arrival.spec.entry_site, request.placement, now_s)
        return Refuse(refusal.status, refusal.reason)

    def _route(self, request: _Request, entry: Entry, now_s: float) -> Route | Refuse:
        arrival, pool = request.arrival, request.placement.pool
        site = self._sites[request.placement.site]
        decision = site.pilots[pool].decide(
            arrival.request_id,
            request.attempt,
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
        one_way_s = self._entries.one_way_s(site.site, arrival.spec.entry_site)
        return Route(
            record.instance,
            decision.ttft_s + 3 * one_way_s,
            predicted_ttft_p90_s=decision.ttft_p90_s + 3 * one_way_s,
            predicted_tpot_s=decision.tpot_s,
            predicted_tpot_p90_s=decision.tpot_p90_s,
            after_s=one_way_s,
        )

    @property
    def adjustments(self) -> list[tuple[float, str, float, float]]:
        """What feedback changed: `(time, knob, before, after)`."""
        return self._adjustments

    def first_token(self, request_id: str, instance: str, now_s: float) -> None:
        site = self._site_of[instance]
        site.pilot_of[instance].first_token(request_id, now_s)
        request = self._requests.get(request_id)
        if request is None:
            return
        request.first_token_s = now_s
        site.admission(request.placement.pool).first_token(request_id, now_s)
        ttft_s = now_s - request.arrival.time_s
        self._entries.first_token(request.arrival.spec.entry_site, request.placement, ttft_s, now_s)

    def ended(self, request_id: str, instance: str, output_tokens: int, now_s: float) -> None:
        site, request = self._site_of[instance], self._requests.get(request_id)
        attempt = request.attempt if request else 1
        completed = output_tokens > 0
        site.pilot_of[instance].ended(
            request_id, attempt, now_s, completed=completed, output_tokens=output_tokens
        )
        if request is None or request.entry is None:
            return
        pool = request.placement.pool
        site.admission(pool).ended(request_id, now_s, completed=completed, output_tokens=output_tokens)
        met = completed and _met(request, request.entry, output_tokens, now_s)
        self._entries.ended(site.site, pool, met=met, now_s=now_s)
        if completed:
            del self._requests[request_id]

    def _now_and_then(self, now_s: float) -> None:
        """What services do by the clock: sites tell of themselves and ask for leases, feedback looks at its windows."""
        self._entries.ask(now_s)
        for name, site in self._sites.items():
            sayings = site.sayings(now_s)
            if sayings is not None:
                self._entries.say(name, sayings, now_s)
            for summary in site.loads(now_s):
                self._entries.say_here(summary, now_s)
            for admission in site.admissions.values():
                for one in admission.adjust(self._policy, now_s):
                    knob = f"{one.request_class}.{one.knob}" if one.request_class else one.knob
                    self._adjustments.append((now_s, knob, one.before, one.after))


def _met(request: _Request, entry: Entry, output_tokens: int, now_s: float) -> bool:
    """As the ledger judges it."""
    first_s, objective = request.first_token_s, entry.objective
    if first_s is None:
        return False
    if objective.ttft_s is not None and first_s - entry.arrived_s > objective.ttft_s:
        return False
    if objective.tpot_s is None or output_tokens < 2:
        return True
    return (now_s - first_s) / (output_tokens - 1) <= objective.tpot_s
