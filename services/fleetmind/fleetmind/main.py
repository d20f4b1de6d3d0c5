"""FleetMind: decides which site and pool serve a request. Any replica may answer: placing needs no lease.

What the site's instances can take is granted to other entries by one replica, the one that holds the pool's lease; another
lease says which one plans how many replicas there should be.
"""

from fleetmind.asking import Asking
from fleetmind.entry import Entry
from fleetmind.grants import Grants
from fleetmind.planner import Planning
from fleetmind.policy.leases import ASK_EVERY_S
from fleetmind.policy.placement import Placer
from tokenfleet import subjects
from tokenfleet.bus import Delivery
from tokenfleet.contracts.control import Capacity, GoodputWindow
from tokenfleet.contracts.sites import SiteSummary
from tokenfleet.lease import RENEW_S
from tokenfleet.live import LivePolicy, LiveTenants
from tokenfleet.service import Service, run_service
from tokenfleet.settings import Settings


class FleetMind:
    """The service's views of all sites, and what it does by the clock."""

    def __init__(self, service: Service[Settings]) -> None:
        self._service = service
        self._bus = service.bus
        self._clock = service.clock
        self._site = service.settings.site
        self._policy = LivePolicy()
        self._tenants = LiveTenants()
        self._placer = Placer(self._site, self._clock.time_scale)
        self._grants = Grants(service, self._placer.sites, self._policy)
        self._asking = Asking(service, self._placer)
        self._entry = Entry(service, self._placer, self._policy, self._tenants, self._asking)
        self._planning = Planning(service, self._placer, self._policy)

    async def start(self) -> None:
        service, bus = self._service, self._bus
        broker = await service.broker()

        @broker.subscriber(subjects.ALL_CAPACITY)
        async def capacity(message: Capacity) -> None:
            self._placer.sites.apply(message, self._clock.wall_s())

        @broker.subscriber(subjects.goodputs(self._site))
        async def goodput(window: GoodputWindow) -> None:
            self._grants.goodput(window)
            self._asking.goodput(window)

        await self._policy.watch(bus)
        await self._tenants.watch(bus)
        await bus.subscribe(subjects.ALL_SUMMARIES, SiteSummary, self._summary, codec="msgpack", ordered=True)
        await bus.subscribe(
            subjects.loads(self._site), SiteSummary, self._summary, codec="msgpack", ordered=True
        )
        await self._grants.start()
        await self._entry.start()
        await self._planning.start()
        service.every(RENEW_S, self._grants.keep)
        service.every(ASK_EVERY_S, self._entry.ask)
        service.on_stop(self._grants.stop)
        service.health = self._health

    def _health(self) -> dict[str, object]:
        sites = self._placer.sites
        return {
            "pools": len(sites),
            "granting": self._grants.health(),
            **self._entry.health(),
            **self._planning.health(),
        }

    async def _summary(self, summary: SiteSummary, delivery: Delivery) -> None:
        try:
            self._placer.sites.summarised(summary, self._clock.wall_s())
        except ValueError as error:
            self._service.log.warning("summary ignored", subject=delivery.subject, error=str(error))
            return
        if summary.site == self._site and summary.prefixes is not None:
            self._grants.heard(summary.pool)


async def start(service: Service[Settings]) -> None:
    await FleetMind(service).start()


def main() -> None:
    """Run FleetMind until told to stop."""
    run_service("fleetmind", Settings, start)
