"""Pools, limits and demands that tests of plans are made of."""

from fleetmind.policy.planning.model import Demand, PoolNow, SiteLimits

BEARS = 0.8


def pool(site: str, ready: int = 1, model: str = "llama", **more) -> PoolNow:
    return PoolNow(site=site, pool=f"{model}@1", model=model, ready=ready, bears=BEARS, **more)


def demand(entry: str, work: float, model: str = "llama", sites: str | None = None) -> Demand:
    """Args:
    sites: names of one letter where it may run; None: everywhere.
    """
    return Demand(
        entry_site=entry,
        model=model,
        work=work,
        expected=0.9 * work,
        horizon_s=360.0,
        sites=None if sites is None else frozenset(sites),
    )


def gpus(**of_sites: int) -> list[SiteLimits]:
    return [SiteLimits(site=site, gpus=count) for site, count in of_sites.items()]
