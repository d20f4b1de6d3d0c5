"""Which site and pool: eligibility is law, the rest is cost. Pure.

The entry's own pools are taken unless another site is better by more than a margin, has granted capacity for it, and has not
been doing badly lately. Of other sites that are about as good, one is drawn, so that many entries with the same summaries do
not all find the same emptiest one. Why this form: docs/adr/0015-placement-across-sites.md.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fleetmind.policy.backoff import Backoff
from fleetmind.policy.cost import BYTES_PER_TOKEN, Estimate, Way, estimate
from fleetmind.policy.demand import Demand
from fleetmind.policy.eligibility import Ineligible, NoPlace, no_place, sift
from fleetmind.policy.leases import Wallet
from fleetmind.policy.rollout import Versions, drawn
from fleetmind.policy.sites import Pool, SiteView
from tokenfleet.contracts.policy import Fleet, Rollout, Tenant
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.contracts.sites import Lease

NEAR_S = 0.1
"""Costs of other sites closer than this are equal: what is known of them is older than that."""
SOUGHT_PRICE = 2.0
"""Seconds that a second of prefill costs at a pool which is wholly taken by requests that may go to fewer pools."""
UNKNOWN_ROUND_TRIP_S = 0.1
"""To a site of which nothing was heard."""
FORGOTTEN = 0.5
"""Of what was wanted, whenever leases are asked for."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes, and why."""

    site: str
    pool: str
    reason: str
    leases: tuple[Lease, ...] = ()
    predicted_ttft_s: float | None = None
    """Engine seconds, round trips included; None where nothing is known of the pool's load."""
    work_s: float = 0.0
    estimates: Sequence[Estimate] = field(default=(), compare=False)
    """Of all that may serve it and whose load is known."""
    out: Sequence[Ineligible] = field(default=(), compare=False)
    """All that it was not chosen from, and why."""


@dataclass(slots=True)
class Placer:
    """One FleetMind replica's judgement.

    Args:
        site: its entry.
        time_scale: engine seconds per wall second.
    """

    site: str
    time_scale: float = 1.0
    sites: SiteView = field(init=False)
    wallet: Wallet = field(default_factory=Wallet)
    versions: dict[str, Versions] = field(default_factory=lambda: defaultdict(Versions))
    backoffs: dict[tuple[str, str], Backoff] = field(default_factory=lambda: defaultdict(Backoff))
    measured_s: dict[str, float] = field(default_factory=dict[str, float])
    """Round trips to other sites, in wall seconds, as measured."""
    _wanted_s: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    _demand: Demand = field(init=False)

    def __post_init__(self) -> None:
        self.sites = SiteView(self.time_scale)
        self._demand = Demand(self.time_scale)

    def place(
        self,
        request: RequestSpec,
        request_id: str,
        tenant: Tenant | None,
        blocks: Sequence[int],
        fleet: Fleet,
        now_s: float,
        avoid: Sequence[str] = (),
    ) -> Placement | NoPlace:
        """The site and pool for a request.

        Args:
            request: what is known of it; a pinned version is honoured or refused.
            request_id: draws between near ties, so that asking again gives the same answer.
            tenant: its record, None when unknown (nothing is permitted then beyond the entry site).
            blocks: hashes of its prompt's full blocks.
            fleet: the policy in force.
            now_s: monotonic wall seconds.
            avoid: sites that did not answer it before, used only where there is no other.
        """
        eligible, out = self._eligible(request, request_id, tenant, fleet, now_s)
        if not eligible:
            return self._doubted(request, out) or no_place(request, out)
        answering = [pool for pool in eligible if pool.site not in avoid] or eligible
        out += _without(eligible, answering, "did_not_answer")
        local = [pool for pool in answering if pool.site == self.site]
        told = [pool for pool in answering if pool.told(now_s)]
        if not told or (local and not any(pool.site == self.site for pool in told)):
            return _share_out(local or answering, out, request_id, "local" if local else "load_unknown")
        out += _without(answering, told, "load_unknown")
        estimates = self._estimates(told, request, blocks, fleet, now_s)
        if not estimates:
            return _share_out(local or told, out, request_id, "load_unknown")
        self._demand.seen(told, min(one.work_s for one in estimates), now_s)
        return self._cheapest(estimates, out, request_id, fleet, now_s)

    def way(self, site: str, fleet: Fleet) -> Way:
        """To another site: as configured, else as measured."""
        if not fleet.round_trips_ms and not fleet.bandwidth_mbps:
            return Way(self.time_scale * self.measured_s.get(site, UNKNOWN_ROUND_TRIP_S))
        pair, back = f"{self.site}-{site}", f"{site}-{self.site}"
        configured_ms = fleet.round_trips_ms.get(pair, fleet.round_trips_ms.get(back))
        wall_s = self.measured_s.get(site, UNKNOWN_ROUND_TRIP_S)
        if configured_ms is not None:
            wall_s = configured_ms / 1e3
        mbps = fleet.bandwidth_mbps.get(pair, fleet.bandwidth_mbps.get(back))
        transfer_s = 8 * BYTES_PER_TOKEN / (mbps * 1e6) if mbps else 0.0
        return Way(self.time_scale * wall_s, self.time_scale * transfer_s)

    def wanted(self, site: str, pool: str) -> float:
        """What was diverted there lately, or would have been: half of it is forgotten whenever this is asked."""
        wanted_s = self._wanted_s.get((site, pool), 0.0)
        self._wanted_s[site, pool] = FORGOTTEN * wanted_s
        return wanted_s

    def _eligible(
        self, request: RequestSpec, request_id: str, tenant: Tenant | None, fleet: Fleet, now_s: float
    ) -> tuple[list[Pool], list[Ineligible]]:
        """Pools that may serve it, of the one version that is drawn for it where versions have weights; and the others."""
        rollout = fleet.rollouts.get(request.model)
        pools = self.sites.of_model(request.model)
        versions = self.versions[request.model]
        versions.ready({pool.capacity.version for pool in pools if pool.capacity.ready}, now_s)
        drained = rollout.drained if rollout else ()
        eligible, out = sift(request, tenant, pools, drained, now_s)
        if not eligible or rollout is None or request.version is not None:
            return eligible, out
        drawn_of = self._of_version(eligible, versions, rollout, request_id, now_s)
        reason = "another_version_drawn" if drawn_of else "no_version_ready"
        return drawn_of, [*out, *_without(eligible, drawn_of, reason)]

    def _estimates(
        self, told: Sequence[Pool], request: RequestSpec, blocks: Sequence[int], fleet: Fleet, now_s: float
    ) -> list[Estimate]:
        sought = self._demand.beyond(told, now_s)
        return estimate(
            told,
            self.sites,
            {pool.site: self.way(pool.site, fleet) for pool in told if pool.site != self.site},
            [
                fleet.prices.get(pool.site, 0.0) + SOUGHT_PRICE * one
                for pool, one in zip(told, sought, strict=True)
            ],
            request.input_tokens,
            request.block_size_tokens,
            blocks,
            now_s,
        )

    def _of_version(
        self, pools: Sequence[Pool], versions: Versions, rollout: Rollout, request_id: str, now_s: float
    ) -> list[Pool]:
        here = {pool.capacity.version for pool in pools}
        weights = {
            version: weight for version, weight in versions.weights(rollout, now_s).items() if version in here
        }
        chosen = drawn(weights, _draw(request_id, "version"))
        return [pool for pool in pools if pool.capacity.version == chosen]

    def _doubted(self, request: RequestSpec, out: Sequence[Ineligible]) -> Placement | None:
        """Silence is not death: an instance here that is only doubted is left to the site's own deciders."""
        doubted = [
            one.pool.name
            for one in out
            if one.reason == "no_ready_instance"
            and one.pool.site == request.entry_site
            and any(each.liveness == "suspect" and not each.draining for each in one.pool.capacity.instances)
        ]
        return Placement(request.entry_site, min(doubted), "local_doubted") if doubted else None

    def _cheapest(
        self,
        estimates: Sequence[Estimate],
        out: list[Ineligible],
        request_id: str,
        fleet: Fleet,
        now_s: float,
    ) -> Placement:
        def placed(one: Estimate, reason: str, leases: tuple[Lease, ...] = ()) -> Placement:
            self.sites.placed(one.pool, one.instance, one.work_s, now_s)
            site, pool = one.pool.site, one.pool.name
            return Placement(site, pool, reason, leases, one.ttft_s, one.work_s, estimates, out)

        here = [one for one in estimates if one.pool.site == self.site]
        away = [one for one in estimates if one.pool.site != self.site]
        stay = min(here, key=lambda one: one.cost_s, default=None)
        if stay is not None:
            better = [one for one in away if one.cost_s + fleet.stay_local_margin_s < stay.cost_s]
            out += _without([one.pool for one in away], [one.pool for one in better], "not_better")
            away = better
        if stay is not None and not away:
            return placed(stay, "local")
        nearest = min(away, key=lambda one: one.cost_s)
        wanted = nearest.pool.site, nearest.pool.name
        self._wanted_s[wanted] = self._wanted_s.get(wanted, 0.0) + nearest.work_s
        looked_at, open_to, granted = self._granted(away, request_id, now_s)
        out += _without([one.pool for one in looked_at], [one.pool for one in open_to], "backing_off")
        out += _without([one.pool for one in open_to], [one.pool for one in granted], "no_headroom")
        if granted:
            chosen = _near_least(granted, request_id)
            leases = self.wallet.spend(chosen.pool.site, chosen.pool.name, chosen.work_s, now_s)
            return placed(chosen, "better_elsewhere" if stay else "nearest_free", leases)
        if stay is not None:
            return placed(stay, "backing_off" if not open_to else "no_headroom_elsewhere")
        # Nothing here serves it, and nobody has granted anything: the site's own deciders judge it.
        return placed(_near_least(open_to or away, request_id), "not_granted")

    def _granted(
        self, away: Sequence[Estimate], request_id: str, now_s: float
    ) -> tuple[list[Estimate], list[Estimate], list[Estimate]]:
        """In order of cost: those looked at, of these those that do not back off, of those the ones that granted enough.

        No further than to what costs about as little as the first that granted.
        """
        looked_at: list[Estimate] = []
        open_to: list[Estimate] = []
        granted: list[Estimate] = []
        for one in sorted(away, key=lambda one: one.cost_s):
            if granted and one.cost_s > granted[0].cost_s + NEAR_S:
                break
            looked_at.append(one)
            if self._open(one, request_id, now_s):
                open_to.append(one)
                if self.wallet.has(one.pool.site, one.pool.name, one.work_s, now_s):
                    granted.append(one)
        return looked_at, open_to, granted

    def _open(self, one: Estimate, request_id: str, now_s: float) -> bool:
        backoff = self.backoffs.get((one.pool.site, one.pool.name))
        return backoff is None or _draw(request_id, one.pool.site) < backoff.share(now_s)


def _near_least(estimates: Sequence[Estimate], request_id: str) -> Estimate:
    """One of those that cost about the least, drawn."""
    least_s = min(one.cost_s for one in estimates)
    near = [one for one in estimates if one.cost_s <= least_s + NEAR_S]
    return near[int(_draw(request_id, "near") * len(near))]


def _without(pools: Sequence[Pool], kept: Sequence[Pool], reason: str) -> list[Ineligible]:
    """Those that were left out, and why."""
    if len(kept) == len(pools):
        return []
    keys = {(pool.site, pool.name) for pool in kept}
    return [Ineligible(pool, reason) for pool in pools if (pool.site, pool.name) not in keys]


def _share_out(pools: Sequence[Pool], out: Sequence[Ineligible], request_id: str, reason: str) -> Placement:
    """By ready instances, where nothing else is known of the pools."""
    ready: dict[tuple[str, str], float] = {(pool.site, pool.name): pool.capacity.ready for pool in pools}
    chosen = drawn(ready, _draw(request_id, "share")) or min(ready)
    return Placement(*chosen, reason, out=out)


def _draw(request_id: str, what: str) -> float:
    """Uniform in [0, 1): always the same for the same request and question."""
    digest = hashlib.blake2b(f"{what}.{request_id}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)
