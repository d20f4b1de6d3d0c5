"""FleetMind: decides which site and pool serve a request. Any replica may answer: placing needs no lease."""

from fleetmind.policy.placement import NoPlace, Placement, SiteView, place
from tokenfleet import subjects
from tokenfleet.bus import Delivery
from tokenfleet.contracts.control import Capacity, Plan
from tokenfleet.contracts.requests import Placed, Refused, Submitted, next_event
from tokenfleet.live import LiveTenants
from tokenfleet.service import Service, run_service
from tokenfleet.settings import Settings

PLAN_EVERY_S = 10.0


class FleetMind:
    """The service's state and handlers."""

    def __init__(self, service: Service[Settings]) -> None:
        self._service = service
        self._bus = service.bus
        self._clock = service.clock
        self._site = service.settings.site
        self._sites = SiteView()
        self._tenants = LiveTenants()

    async def start(self) -> None:
        service = self._service
        broker = await service.broker()

        @broker.subscriber(subjects.ALL_CAPACITY)
        async def capacity(message: Capacity) -> None:
            self._sites.apply(message, self._clock.wall_s())

        await self._tenants.watch(self._bus)
        await self._bus.subscribe(
            subjects.request_events(self._site, "submitted"), Submitted, self._submitted, queue="fleetmind"
        )
        service.every(PLAN_EVERY_S, self._publish_plan)
        service.health = lambda: {"pools": len(self._sites)}
        self._placements = service.observability.meter.create_counter(
            "tokenfleet.fleetmind.placements", description="Requests placed, by site and reason."
        )

    async def _submitted(self, event: Submitted, delivery: Delivery) -> None:
        if not len(self._sites):
            return  # no roll-up has arrived yet: silence makes ingress ask again, a refusal would be wrong
        with self._service.observability.span(
            "fleetmind.place", delivery.headers, {"tokenfleet.request_id": event.request_id}
        ) as headers:
            tenant = self._tenants.by_name.get(event.tenant)
            choice = place(event.request, event.request_id, tenant, self._sites, self._clock.wall_s())
            if isinstance(choice, Placement):
                self._placements.add(1, {"tokenfleet.site": choice.site, "tokenfleet.reason": choice.reason})
                subject = subjects.request(choice.site, choice.pool, "placed")
                await self._bus.publish(subject, self._placed(event, choice), headers=headers)
            else:
                subject = subjects.request(self._site, event.pool, "refused", event.request.ingress)
                await self._bus.publish(subject, self._refused(event, choice), headers=headers)

    def _placed(self, event: Submitted, choice: Placement) -> Placed:
        return next_event(
            Placed,
            "placed",
            event,
            site=choice.site,
            pool=choice.pool,
            time_ns=self._clock.unix_ns(),
            request=event.request,
            reason=choice.reason,
        )

    def _refused(self, event: Submitted, choice: NoPlace) -> Refused:
        return next_event(
            Refused,
            "refused",
            event,
            site=self._site,
            time_ns=self._clock.unix_ns(),
            status=choice.status,
            reason=choice.reason,
            message=choice.message,
            retry_after_s=1.0 if choice.status == 503 else None,
        )

    async def _publish_plan(self) -> None:
        broker = await self._service.broker()
        for model, pools in sorted(self._sites.by_model().items()):
            ready = [f"{pool.site}/{pool.pool}" for pool in pools if pool.ready]
            plan = Plan(
                time_ns=self._clock.unix_ns(),
                site=self._site,
                model=model,
                pools=sorted(ready),
                reason=f"{len(ready)} of {len(pools)} pools have ready instances",
            )
            await broker.publish(plan, subjects.PLAN)


async def start(service: Service[Settings]) -> None:
    await FleetMind(service).start()


def main() -> None:
    """Run FleetMind until told to stop."""
    run_service("fleetmind", Settings, start)
