"""What a plan is made from, out of capacity and the live policy, and what it is told as. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fleetmind.policy.planning.book import Asking
from fleetmind.policy.planning.forecast import Forecast
from fleetmind.policy.planning.model import Demand, FleetPlan, PoolNow, SiteLimits
from fleetmind.policy.planning.planner import PLAN_EVERY_S, horizon_s
from fleetmind.policy.sites import SiteView
from tokenfleet.contracts.control import Capacity, DemandForecast, Plan, PoolPlanned, UnservedWork
from tokenfleet.contracts.policy import OTHER_POOLS, Policy
from tokenfleet.subjects import split_model

SILENT_S = 30.0
"""A site whose capacity was not heard for so long is not planned for."""

PoolKey = tuple[str, str]
"""Site and pool."""


@dataclass(slots=True)
class Begun:
    """Replicas that a plan asked for and that are not there yet: until an engine answers, no node agent tells of it."""

    _wanted: dict[PoolKey, tuple[int, float]] = field(default_factory=dict[PoolKey, tuple[int, float]])
    """By pool: how many are wanted, and since when so many."""

    def wanted(self, plan: FleetPlan, now_s: float) -> None:
        """A plan that somebody acts on."""
        for pool in plan.pools:
            key = pool.site, pool.pool
            before = self._wanted.get(key)
            if before is None or before[0] != pool.wanted:
                self._wanted[key] = pool.wanted, now_s

    def forget(self) -> None:
        """Nobody acts on plans any more."""
        self._wanted.clear()

    def warming(self, key: PoolKey, ready: int, warm_up_s: float, now_s: float) -> tuple[int, float]:
        """How many more than those ready are on their way, and until when; what took longer is given up."""
        wanted, since_s = self._wanted.get(key, (0, 0.0))
        left_s = since_s + warm_up_s - now_s
        return (max(0, wanted - ready), left_s) if left_s > 0.0 else (0, 0.0)


def planned_sites(view: SiteView, own: str, telling: Collection[str], now_s: float) -> list[str]:
    """The sites that can be planned for from here: where FleetMind tells of demand, and the collector of capacity if there
    is any. The first of them plans for all.
    """
    return sorted(
        site
        for site in {own, *telling}
        if site == own or all(now_s - pool.heard_s < SILENT_S for pool in view.of_site(site))
    )


def pools_now(
    view: SiteView, sites: Iterable[str], policy: Policy, begun: Begun, now_s: float
) -> list[PoolNow]:
    """The pools of some sites: those that run, and those that the policy names there although nothing runs."""
    found: list[PoolNow] = []
    for site in sites:
        running = {pool.name: pool.capacity for pool in view.of_site(site)}
        named = {name.partition("/")[2] for name in policy.fleet.scaling.pools if name.startswith(f"{site}/")}
        for name in sorted(running.keys() | named):
            found.append(_pool_now(site, name, running.get(name), policy, begun, now_s))
    return found


def horizon_of(pools: Iterable[PoolNow], model: str) -> float:
    """How far ahead a model's demand must be known, in wall seconds."""
    return horizon_s((pool for pool in pools if pool.model == model), PLAN_EVERY_S)


def limits(sites: Iterable[str], policy: Policy) -> list[SiteLimits]:
    """What the pools of each site may take together."""
    scaling = policy.fleet.scaling
    return [
        SiteLimits(site=site, gpus=of_site.gpus, memory_gib=of_site.memory_gib)
        for site, of_site in ((site, scaling.of_site(site)) for site in sites)
    ]


def demands(expected: Mapping[Asking, Forecast]) -> list[Demand]:
    """Forecasts as work to be borne."""
    return [
        Demand(
            entry_site=one.site,
            model=one.model,
            work=forecast.upper,
            expected=forecast.expected,
            horizon_s=forecast.horizon_s,
            sites=None if one.sites is None else frozenset(one.sites),
        )
        for one, forecast in expected.items()
    ]


def round_trips_s(
    own: str, sites: Collection[str], measured_s: Mapping[str, float], policy: Policy
) -> dict[PoolKey, float]:
    """Between entries and sites, wall seconds: as configured, else as measured from here."""
    found: dict[PoolKey, float] = {}
    for site in sites:
        if site in measured_s:
            found[own, site] = found[site, own] = measured_s[site]
    for pair, milliseconds in policy.fleet.round_trips_ms.items():
        one, _, other = pair.partition("-")
        found[one, other] = found[other, one] = milliseconds / 1e3
    return found


def as_message(
    plan: FleetPlan,
    pools: Iterable[PoolNow],
    expected: Mapping[Asking, Forecast],
    *,
    site: str,
    covers: list[str],
    dry_run: bool,
    time_ns: int,
) -> Plan:
    """The plan as it is told."""
    now = {(pool.site, pool.pool): pool for pool in pools}
    return Plan(
        time_ns=time_ns,
        site=site,
        covers=covers,
        dry_run=dry_run,
        pools=[
            PoolPlanned(
                site=pool.site,
                pool=pool.pool,
                model=pool.model,
                ready=now[pool.site, pool.pool].ready,
                warming=now[pool.site, pool.pool].warming,
                wanted=pool.wanted,
                prewarm=pool.prewarm,
                work=pool.work,
                bears=pool.bears,
                reason=pool.reason,
            )
            for pool in plan.pools
        ],
        forecasts=[
            DemandForecast(
                site=one.site,
                model=one.model,
                sites=None if one.sites is None else list(one.sites),
                horizon_s=forecast.horizon_s,
                expected=forecast.expected,
                upper=forecast.upper,
                error=forecast.error,
                naive_error=forecast.naive_error,
                form=forecast.form,
            )
            for one, forecast in expected.items()
        ],
        unserved=[
            UnservedWork(site=one.entry_site, model=one.model, work=one.work, reason=one.reason)
            for one in plan.unserved
        ],
    )


def says_the_same(one: Plan, other: Plan) -> bool:
    """Whether two plans want the same, whatever the figures behind it."""

    def wish(plan: Plan) -> tuple[object, ...]:
        pools = [(pool.site, pool.pool, pool.now, pool.wanted, pool.prewarm) for pool in plan.pools]
        return plan.site, plan.covers, plan.dry_run, pools, [(one.site, one.model) for one in plan.unserved]

    return wish(one) == wish(other)


def _pool_now(
    site: str, name: str, capacity: Capacity | None, policy: Policy, begun: Begun, now_s: float
) -> PoolNow:
    scaling = policy.fleet.scaling.of_pool(site, name)
    model, version = split_model(name)
    rollout = policy.fleet.rollouts.get(model)
    leaves = rollout is not None and version in rollout.drained
    # One that is silent for a moment, or whose engine starts again, still takes its GPUs.
    ready = sum(not one.draining for one in capacity.instances) if capacity else 0
    warming, warm_in_s = begun.warming((site, name), ready, scaling.warm_up_s, now_s)
    prices = policy.gpu_hour_prices
    return PoolNow(
        site=site,
        pool=name,
        model=model,
        ready=ready,
        warming=warming,
        warm_in_s=warm_in_s,
        gpus=scaling.gpus,
        memory_gib=scaling.memory_gib,
        warm_up_s=scaling.warm_up_s,
        minimum=0 if leaves else scaling.min,
        maximum=0 if leaves else scaling.max,
        gpu_hour_price=prices.get(name, prices.get(OTHER_POOLS, 1.0)),
    )
