"""The same fleet with more or fewer instances."""

from collections.abc import Sequence
from itertools import cycle, islice

import msgspec

from lab.sim.cluster import Cluster, InstanceSpec
from lab.whatif.errors import WhatIfError
from lab.whatif.fleet import Fleet
from tokenfleet import subjects


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How many instances a pool is to have."""

    instances: int
    pool: str | None = None
    """None: the only one."""


def resized(fleet: Fleet, sizes: Sequence[Size]) -> Cluster:
    """The cluster with other numbers of instances. Those added are like the pool's own, in turn; those left out are
    the last by name, first those that came or went within the window.

    Raises:
        WhatIfError: there is no such pool, or which one is meant is not clear.
    """
    cluster, pools = fleet.cluster, fleet.pools
    for size in sizes:
        pool = size.pool
        if pool is None:
            if len(pools) > 1:
                raise WhatIfError(
                    f"The window has several pools ({', '.join(sorted(pools))}): say which one, as in "
                    f"--instances {next(iter(sorted(pools)))}={size.instances}."
                )
            pool = next(iter(pools))
        if pool not in pools:
            raise WhatIfError(f"There is no pool {pool} in the window. Known: {', '.join(sorted(pools))}.")
        cluster = _with(cluster, subjects.token(pool), size.instances)
    return cluster


def _with(cluster: Cluster, version: str, count: int) -> Cluster:
    unsteady = {one.instance for one in (*cluster.failures, *cluster.drains)}
    others = [spec for spec in cluster.instances if spec.version != version]
    own = sorted(
        (spec for spec in cluster.instances if spec.version == version),
        key=lambda spec: (spec.name in unsteady, spec.name),
    )
    if not own:
        return cluster
    added = [
        msgspec.structs.replace(spec, name=f"{spec.name}+{number}")
        for number, spec in enumerate(islice(cycle(own), max(0, count - len(own))), 1)
    ]
    instances: list[InstanceSpec] = [*others, *own[:count], *added]
    kept = {spec.name for spec in instances}
    return msgspec.structs.replace(
        cluster,
        instances=tuple(instances),
        failures=tuple(one for one in cluster.failures if one.instance in kept),
        drains=tuple(one for one in cluster.drains if one.instance in kept),
    )
