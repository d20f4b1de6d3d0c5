"""Where a request goes when no decider answers. Pure."""

from collections.abc import Iterable, Mapping

from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.fleet_view import InstanceView
from tokenfleet.residency import refusal


def permitted_to(
    request: RequestSpec, tenant: Tenant | None, ready: Iterable[InstanceView]
) -> list[InstanceView]:
    """Of the ready instances, those where a request may run: nobody being there to decide widens nothing."""
    return [
        view
        for view in ready
        if refusal(request, tenant, view.record.site, view.record.region) is None
        and (request.adapter is None or request.adapter in view.record.adapters)
    ]


def least_loaded(
    ready: Iterable[InstanceView], own_in_flight: Mapping[str, int], excluded: Iterable[str] = ()
) -> InstanceView | None:
    """The ready instance with the fewest requests, None when all are excluded.

    An instance holds at least what this ingress itself has there; its last reading may be older than that,
    or missing.
    """
    out = set(excluded)

    def load(view: InstanceView) -> tuple[int, int, str]:
        own = own_in_flight.get(view.record.instance, 0)
        state = view.state
        reported = 0 if state is None else (state.waiting or 0) + (state.running or 0)
        return max(own, reported), own, view.record.instance

    return min((view for view in ready if view.record.instance not in out), key=load, default=None)
