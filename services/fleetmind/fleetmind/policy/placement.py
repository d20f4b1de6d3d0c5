"""Which site and pool: eligibility is law, the rest is cost. Pure.

This first form stays at the entry site whenever a pool there is ready, and among several versions of a model
shares requests out by their ready instances.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenfleet.contracts.control import Capacity
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec

STALE_AFTER_S = 10.0
"""A site silent for this long is not sent other sites' requests; its own entry still tries it."""


@dataclass(frozen=True, slots=True)
class Placement:
    site: str
    pool: str
    reason: str


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why nothing may take it: 404 nothing serves the model for this tenant, 503 nothing is ready."""

    status: int
    reason: str
    message: str


class SiteView:
    """The latest capacity of every pool of every site."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str], tuple[Capacity, float]] = {}

    def apply(self, capacity: Capacity, now_s: float) -> None:
        """A roll-up arrived; one without instances removes the pool."""
        key = (capacity.site, capacity.pool)
        if capacity.instances:
            self._pools[key] = (capacity, now_s)
        else:
            self._pools.pop(key, None)

    def __len__(self) -> int:
        return len(self._pools)

    def of_model(self, model: str) -> list[tuple[Capacity, float]]:
        """`(capacity, when it was heard)` of every pool of a model."""
        return [entry for entry in self._pools.values() if entry[0].model == model]

    def by_model(self) -> Mapping[str, list[Capacity]]:
        models: dict[str, list[Capacity]] = {}
        for capacity, _ in self._pools.values():
            models.setdefault(capacity.model, []).append(capacity)
        return models


def place(
    request: RequestSpec, request_id: str, tenant: Tenant | None, sites: SiteView, now_s: float
) -> Placement | NoPlace:
    """The site and pool for a request.

    Args:
        request: what is known of it; a pinned version is honoured or refused.
        request_id: decides between equal pools, so that asking again gives the same answer.
        tenant: its record, None when unknown (nothing is permitted then beyond the entry site).
        sites: what the sites reported.
        now_s: monotonic wall seconds.
    """
    serving = sites.of_model(request.model)
    if request.version is not None:
        serving = [entry for entry in serving if entry[0].version == request.version]
    permitted = [entry for entry in serving if _may_use(tenant, request, entry[0])]
    if not permitted:
        wanted = request.model + (f"@{request.version}" if request.version else "")
        return NoPlace(404, "model_not_found", f"No site this tenant may use serves {wanted}.")
    local = [capacity for capacity, _ in permitted if capacity.site == request.entry_site]
    remote = [
        capacity
        for capacity, heard_s in permitted
        if capacity.site != request.entry_site and now_s - heard_s < STALE_AFTER_S
    ]
    for pools, reason in ((local, "local"), (remote, "no_local_instance_ready")):
        ready = [capacity for capacity in pools if capacity.ready]
        if ready:
            return _share_out(ready, request_id, reason)
    doubted = [capacity for capacity in local if _may_be_alive(capacity)]
    if doubted:
        # Silence is not death: the site's own deciders, who hear more, judge it.
        return Placement(request.entry_site, min(capacity.pool for capacity in doubted), "local_doubted")
    return NoPlace(
        503, "no_ready_instance", f"No instance of {request.model} is ready at any permitted site."
    )


def _may_be_alive(capacity: Capacity) -> bool:
    return any(entry.liveness == "suspect" and not entry.draining for entry in capacity.instances)


def _may_use(tenant: Tenant | None, request: RequestSpec, capacity: Capacity) -> bool:
    if tenant is None:
        return capacity.site == request.entry_site
    if tenant.models is not None and capacity.model not in tenant.models:
        return False
    return tenant.sites is None or capacity.site in tenant.sites


def _share_out(pools: Sequence[Capacity], request_id: str, reason: str) -> Placement:
    # Weighted rendezvous by ready instances: a stable draw in [0, total) from the request's id.
    ordered = sorted(pools, key=lambda capacity: (capacity.site, capacity.pool))
    total = sum(capacity.ready for capacity in ordered)
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    draw = int.from_bytes(digest) % total
    for capacity in ordered:
        draw -= capacity.ready
        if draw < 0:
            break
    else:
        raise AssertionError("the draw is below the total")
    return Placement(capacity.site, capacity.pool, reason)
