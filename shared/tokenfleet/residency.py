"""Where a request may run. Law, not judgement: whoever places or sends a request asks here. Pure.

What is unknown is forbidden to whoever is bound: a site that does not say which region it is in takes no request that
may not leave one.
"""

from collections.abc import Iterable

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
    tenant_sites = tenant.sites if tenant is not None else None
    for sites in (request.sites, tenant_sites):
        if sites is not None and site not in sites:
            return "site_not_permitted"
    tenant_regions = tenant.regions if tenant is not None else None
    for regions in (request.regions, tenant_regions):
        if regions is None:
            continue
        if region is None:
            return "region_unknown"
        if region not in regions:
            return "region_not_permitted"
    return None


def narrowed(allowed: Iterable[str] | None, asked: Iterable[str] | None) -> tuple[str, ...] | None:
    """What both allow; None where neither says anything. Asking can only narrow what is allowed."""
    if allowed is None or asked is None:
        either = allowed if asked is None else asked
        return None if either is None else tuple(either)
    permitted = set(allowed)
    return tuple(one for one in asked if one in permitted)
