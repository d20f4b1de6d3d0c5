"""Where a request may run. Law, not judgement: whoever places or sends a request asks here. Pure.

What is unknown is forbidden to whoever is bound: a site that does not say which region it is in takes no request that
may not leave one.
"""

from collections.abc import Iterable, Sequence

from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec


def refusal(request: RequestSpec, tenant: Tenant | None, site: str, region: str | None) -> str | None:
    """Why a request may not run at a site, as a word for machines; None when it may.

    The request carries what its ingress knew of its tenant, so that a decider that knows less, or something older, cannot
    allow more.

    Args:
        request: with the sites and regions it may use.
        tenant: its record as the caller knows it; None when it is unknown.
        site: where it might run.
        region: of that site; None when it is not known.
    """
    forbidden = out_of_bounds(request.sites, request.regions, site, region)
    if forbidden is None and tenant is not None:
        forbidden = out_of_bounds(tenant.sites, tenant.regions, site, region)
    return forbidden


def out_of_bounds(
    sites: Sequence[str] | None, regions: Sequence[str] | None, site: str, region: str | None
) -> str | None:
    """Why somebody who is bound to sites and regions (None: to none) may not use a site; None when he may."""
    if sites is not None and site not in sites:
        return "site_not_permitted"
    if regions is None:
        return None
    if region is None:
        return "region_unknown"
    return None if region in regions else "region_not_permitted"


def narrowed(allowed: Iterable[str] | None, asked: Iterable[str] | None) -> tuple[str, ...] | None:
    """What both allow; None where neither says anything. Asking can only narrow what is allowed."""
    if allowed is None or asked is None:
        either = allowed if asked is None else asked
        return None if either is None else tuple(either)
    permitted = set(allowed)
    return tuple(one for one in asked if one in permitted)
