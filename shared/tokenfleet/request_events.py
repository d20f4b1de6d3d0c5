"""Keeps a load view current from the events of requests, for every service that predicts."""

from collections.abc import Callable

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.clock import Clock
from tokenfleet.contracts.requests import Ended, FirstToken, Retried, Routed
from tokenfleet.load import LoadView


async def follow_requests(
    bus: Bus,
    site: str,
    clock: Clock,
    load: LoadView,
    *,
    on_ended: Callable[[str], None] | None = None,
) -> None:
    """Apply routed, first_token, retried and terminal events of a site to `load`, in order of arrival."""

    async def routed(event: Routed, _: Delivery) -> None:
        load.routed(
            event.request_id,
            event.attempt,
            event.instance,
            event.input_tokens,
            event.reused_tokens,
            clock.now_s(),
        )

    async def first_token(event: FirstToken, _: Delivery) -> None:
        load.first_token(event.request_id, clock.now_s())

    async def retried(event: Retried, _: Delivery) -> None:
        load.ended(event.request_id, event.attempt)

    async def ended(event: Ended, _: Delivery) -> None:
        load.ended(event.request_id, event.attempt)
        if on_ended:
            on_ended(event.request_id)

    def one(event: str) -> str:
        return subjects.request_events(site, event)

    await bus.subscribe(subjects.request_events(site, "routed", answer=True), Routed, routed, ordered=True)
    await bus.subscribe(one("first_token"), FirstToken, first_token, ordered=True)
    await bus.subscribe(one("retried"), Retried, retried, ordered=True)
    for outcome in subjects.OUTCOMES:
        await bus.subscribe(one(outcome), Ended, ended, ordered=True)
