"""What happens to requests, told to whoever keeps a view of them, in order of arrival."""

from typing import Protocol

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.clock import Clock
from tokenfleet.contracts.requests import Ended, FirstToken, Retried, Routed


class Follower(Protocol):
    """Told of each fact about the requests of a site. Times are engine seconds of this process."""

    def routed(self, event: Routed, now_s: float) -> None: ...

    def first_token(self, event: FirstToken, now_s: float) -> None: ...

    def retried(self, event: Retried, now_s: float) -> None: ...

    def ended(self, event: Ended, now_s: float) -> None: ...


async def follow_requests(bus: Bus, site: str, clock: Clock, follower: Follower) -> None:
    """Tell `follower` of the routed, first_token, retried and terminal events of a site."""

    async def routed(event: Routed, _: Delivery) -> None:
        follower.routed(event, clock.now_s())

    async def first_token(event: FirstToken, _: Delivery) -> None:
        follower.first_token(event, clock.now_s())

    async def retried(event: Retried, _: Delivery) -> None:
        follower.retried(event, clock.now_s())

    async def ended(event: Ended, _: Delivery) -> None:
        follower.ended(event, clock.now_s())

    def one(event: str) -> str:
        return subjects.request_events(site, event)

    await bus.subscribe(subjects.request_events(site, "routed", answer=True), Routed, routed, ordered=True)
    await bus.subscribe(one("first_token"), FirstToken, first_token, ordered=True)
    await bus.subscribe(one("retried"), Retried, retried, ordered=True)
    for outcome in (*subjects.OUTCOMES, subjects.LOST):
        await bus.subscribe(one(outcome), Ended, ended, ordered=True)
