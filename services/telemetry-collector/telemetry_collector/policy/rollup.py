"""Capacity of a pool and a site from the view of their instances. Pure."""

from collections.abc import Iterable, Sequence

from tokenfleet.contracts.control import Capacity, InstanceCapacity, SiteCapacity
from tokenfleet.fleet_view import FleetView, InstanceView


def roll_up(fleet: FleetView, site: str, now_s: float, time_ns: int) -> list[Capacity]:
    """One roll-up per pool, by name. Ready are those that every decider would send a request to."""
    return [
        _pool(pool, fleet.pool(pool), fleet.ready(pool, now_s), site, now_s, time_ns)
        for pool in sorted(fleet.pools())
    ]


def roll_up_site(pools: Iterable[Capacity], site: str, time_ns: int) -> SiteCapacity:
    """The pools of a site added up; what is unknown counts as nothing here and as unknown in its pool."""
    pools = list(pools)
    return SiteCapacity(
        time_ns=time_ns,
        site=site,
        pools=len(pools),
        instances=sum(len(pool.instances) for pool in pools),
        ready=sum(pool.ready for pool in pools),
        running=sum(pool.running or 0 for pool in pools),
        waiting=sum(pool.waiting or 0 for pool in pools),
    )


def gone(pool: str, site: str, time_ns: int) -> Capacity:
    """The last word on a pool whose every instance left: no instances."""
    return _pool(pool, [], [], site, 0.0, time_ns)


def _pool(
    pool: str,
    views: Sequence[InstanceView],
    ready: Sequence[InstanceView],
    site: str,
    now_s: float,
    time_ns: int,
) -> Capacity:
    model, _, version = pool.rpartition("@")
    return Capacity(
        time_ns=time_ns,
        site=site,
        pool=pool,
        model=model,
        version=version,
        instances=[_instance(view, now_s) for view in sorted(views, key=lambda view: view.record.instance)],
        ready=len(ready),
        waiting=_known_sum(view.state.waiting if view.state else None for view in ready),
        running=_known_sum(view.state.running if view.state else None for view in ready),
        kv_free_tokens=_known_sum(_kv_free_tokens(view) for view in ready),
        free_slots=_known_sum(_free_slots(view) for view in ready),
        region=_region(views),
        adapters=sorted({adapter for view in ready for adapter in view.record.adapters}),
        max_prompt_tokens=max((view.record.profile.longest_prompt_tokens for view in ready), default=None),
    )


def _region(views: Sequence[InstanceView]) -> str | None:
    """Unknown where instances disagree: nothing that is bound to a region may go there then."""
    regions = {view.record.region for view in views}
    return regions.pop() if len(regions) == 1 else None


def _instance(view: InstanceView, now_s: float) -> InstanceCapacity:
    state = view.state
    return InstanceCapacity(
        instance=view.record.instance,
        liveness=view.liveness(now_s),
        age_s=view.age_s(now_s),
        draining=view.record.draining,
        waiting=state.waiting if state else None,
        running=state.running if state else None,
        kv_usage=state.kv_usage if state else None,
    )


def _kv_free_tokens(view: InstanceView) -> int | None:
    if view.state is None or view.state.kv_usage is None:
        return None
    return int((1.0 - view.state.kv_usage) * view.record.profile.kv_capacity_tokens)


def _free_slots(view: InstanceView) -> int | None:
    if view.state is None or view.state.running is None:
        return None
    return max(0, view.record.profile.max_running_requests - view.state.running - (view.state.waiting or 0))


def _known_sum(values: Iterable[int | None]) -> int | None:
    # Unknown only if nothing is known: one engine without a metric must not hide the others.
    known = [value for value in values if value is not None]
    return sum(known) if known else None
