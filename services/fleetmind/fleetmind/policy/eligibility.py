"""Which pools may serve a request at all, each refusal with its reason. Law before cost. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fleetmind.policy.sites import STALE_AFTER_S, Pool
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.residency import refusal

RESIDENCY = ("site_not_permitted", "region_unknown", "region_not_permitted")


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why nothing may take a request: 400 it is too long everywhere, 403 it may not run where the model is, 404
    nothing serves it, 429 no room, 503 nothing is ready."""

    status: int
    reason: str
    message: str
    retry_after_s: float | None = None
    out: "Sequence[Ineligible]" = field(default=(), compare=False)
    """Every pool of the model, and why it cannot."""


@dataclass(frozen=True, slots=True)
class Ineligible:
    """A pool that may not serve a request, or was not chosen from, and why."""

    pool: Pool
    reason: str


def sift(
    request: RequestSpec, tenant: Tenant | None, pools: Sequence[Pool], drained: Sequence[str], now_s: float
) -> tuple[list[Pool], list[Ineligible]]:
    """The pools that may serve a request, and why each of the others may not.

    Args:
        request: what is known of it.
        tenant: its record, None when unknown: nothing is permitted then beyond the entry site.
        pools: of its model.
        drained: versions that take nothing new.
        now_s: monotonic wall seconds.
    """
    eligible: list[Pool] = []
    out: list[Ineligible] = []
    for pool in pools:
        reason = why_not(request, tenant, pool, drained, now_s)
        if reason is None:
            eligible.append(pool)
        else:
            out.append(Ineligible(pool, reason))
    return eligible, out


def why_not(
    request: RequestSpec, tenant: Tenant | None, pool: Pool, drained: Sequence[str], now_s: float
) -> str | None:
    """Why a pool may not serve a request, or None. Permission comes first: no fault may widen it."""
    capacity = pool.capacity
    if tenant is None and capacity.site != request.entry_site:
        return "tenant_unknown"
    if tenant is not None and tenant.models is not None and capacity.model not in tenant.models:
        return "model_not_permitted"
    if forbidden := refusal(request, tenant, capacity.site, capacity.region):
        return forbidden
    if request.version is not None and request.version != capacity.version:
        return "other_version"
    if capacity.version in drained:
        return "version_drained"
    if capacity.site != request.entry_site and now_s - pool.heard_s >= STALE_AFTER_S:
        return "site_silent"
    if not capacity.ready:
        return "no_ready_instance"
    if request.adapter is not None and request.adapter not in capacity.adapters:
        return "adapter_missing"
    if capacity.max_prompt_tokens is not None and request.input_tokens > capacity.max_prompt_tokens:
        return "context_too_long"
    return None


def no_place(request: RequestSpec, out: Sequence[Ineligible]) -> NoPlace:
    """One answer for all refusals: the one that is nearest to a yes says what would help."""
    wanted = request.model + (f"@{request.version}" if request.version else "")
    reasons = {one.reason for one in out if one.reason != "other_version"}
    for reason, status, message in _ANSWERS:
        if reason in reasons:
            told = message.format(wanted=wanted, request=request)
            return NoPlace(status, reason, told, _RETRY.get(status), out)
    if out and request.version is not None:
        message = (
            f"No site this tenant may use serves {wanted}; other versions of {request.model} are served."
        )
        return NoPlace(404, "version_not_found", message, out=out)
    return NoPlace(404, "model_not_found", f"No site this tenant may use serves {wanted}.", out=out)


_RETRY = {429: 1.0, 503: 1.0}

_ANSWERS = (
    (
        "no_version_ready",
        503,
        "No version of {request.model} that takes requests is ready at any permitted site.",
    ),
    ("context_too_long", 400, "The prompt has {request.input_tokens} tokens: too long for {wanted} here."),
    ("adapter_missing", 404, "No ready instance of {wanted} has the adapter {request.adapter}."),
    ("no_ready_instance", 503, "No instance of {wanted} is ready at any permitted site."),
    ("site_silent", 503, "The sites that serve {wanted} have not been heard of lately."),
    ("version_drained", 404, "{wanted} is being withdrawn and takes no new requests."),
    (
        "region_unknown",
        403,
        "{wanted} runs only at sites whose region is not known; this request is bound to regions.",
    ),
    ("region_not_permitted", 403, "{wanted} does not run in a region that this request may use."),
    ("site_not_permitted", 403, "{wanted} does not run at a site that this tenant may use."),
)
"""In order of how near to a yes each is: who may use a busy site should hear of that, not of a forbidden one."""
