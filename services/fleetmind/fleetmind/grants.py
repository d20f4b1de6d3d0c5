"""Grants capacity of this site to other entries: one replica per pool, by lease."""

from fleetmind.policy.granting import Granter
from fleetmind.policy.sites import SiteView
from tokenfleet import subjects
from tokenfleet.bus import Delivery
from tokenfleet.contracts.control import GoodputWindow
from tokenfleet.contracts.requests import Placed
from tokenfleet.contracts.sites import LeaseAsk
from tokenfleet.lease import Leases
from tokenfleet.live import LivePolicy
from tokenfleet.service import Service
from tokenfleet.settings import Settings


class Grants:
    """The pools that this replica grants of."""

    def __init__(self, service: Service[Settings], sites: SiteView, policy: LivePolicy) -> None:
        settings = service.settings
        self._bus = service.bus
        self._clock = service.clock
        self._site = settings.site
        self._sites = sites
        self._policy = policy
        self._leases = Leases(service.bus, service.clock, "fleetmind", settings.site, settings.replica)
        self._granters: dict[str, Granter] = {}

    async def start(self) -> None:
        await self._bus.subscribe(
            subjects.lease_ask(self._site), LeaseAsk, self._asked, codec="msgpack", ordered=True
        )
        await self._bus.subscribe(
            subjects.request_events(self._site, "placed"), Placed, self._placed, ordered=True
        )

    async def keep(self) -> None:
        """Keep the leases of this site's pools; whoever takes one over begins with an empty book."""
        await self._leases.keep([pool.name for pool in self._sites.of_site(self._site)])
        held = set(self._leases.held())
        for pool in self._granters.keys() - held:
            del self._granters[pool]
        for pool in held - self._granters.keys():
            self._granters[pool] = Granter(self._clock.wall_s())

    async def stop(self) -> None:
        await self._leases.release()

    def health(self) -> dict[str, float]:
        """By pool, how much prefill one instance may have before it."""
        return {pool: round(granter.limit.limit_s, 2) for pool, granter in self._granters.items()}

    def heard(self, pool: str) -> None:
        """A summary of a pool of this site arrived."""
        granter, known = self._granters.get(pool), self._sites.get(self._site, pool)
        if granter is not None and known is not None:
            granter.heard(known)

    def goodput(self, window: GoodputWindow) -> None:
        """What the ledger saw of a pool of this site and one class."""
        granter = self._granters.get(window.pool)
        if granter is not None:
            granter.limit.window(window.met, window.offered - window.rejected)

    async def _placed(self, event: Placed, _: Delivery) -> None:
        granter = self._granters.get(event.pool)
        if granter is not None and event.leases:
            granter.placed(event.leases, self._clock.wall_s())

    async def _asked(self, ask: LeaseAsk, _: Delivery) -> None:
        granter, pool = self._granters.get(ask.pool), self._sites.get(self._site, ask.pool)
        if granter is None or pool is None or not self._leases.holds(ask.pool):
            return
        grant = granter.answer(ask, pool, self._sites, self._policy.current.fleet, self._clock.wall_s())
        await self._bus.publish(subjects.lease_grant(ask.site, ask.holder), grant, codec="msgpack")
