"""Tells all sites how much work this replica was asked to place, once an interval."""

from fleetmind.policy.eligibility import NoPlace
from fleetmind.policy.placement import Placement, Placer
from fleetmind.policy.planning.asked import AskedWork
from fleetmind.policy.planning.forecast import INTERVAL_S
from tokenfleet import subjects
from tokenfleet.contracts.control import GoodputWindow
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import Submitted
from tokenfleet.contracts.sites import Asked
from tokenfleet.errors import UnavailableError
from tokenfleet.service import Service
from tokenfleet.settings import Settings

LOOK_EVERY_S = 1.0


class Asking:
    """What one replica counts. Each request is handled by one replica of its entry, so the sum over them is what was asked."""

    def __init__(self, service: Service[Settings], placer: Placer) -> None:
        self._bus = service.bus
        self._clock = service.clock
        self._log = service.log
        self._site = service.settings.site
        self._replica = service.settings.replica
        self._placer = placer
        self._work = AskedWork()
        self._interval_start_s = self._interval()
        self._whole = False
        """Whether this replica counts from the interval's begin: the first one it only saw the end of."""
        service.every(LOOK_EVERY_S, self._tell)

    def decided(self, event: Submitted, tenant: Tenant | None, choice: Placement | NoPlace) -> None:
        """A request was placed here, or refused."""
        if self._work.first_asked(event, self._unix_s()):
            pools = self._placer.sites.of_model(event.request.model)
            self._work.asked(event.request, tenant, pools, choice)

    def goodput(self, window: GoodputWindow) -> None:
        """How long answers were."""
        self._work.answered(subjects.split_model(window.pool)[0], window)

    async def _tell(self) -> None:
        now_s = self._interval()
        if now_s == self._interval_start_s:
            return
        start_s, whole = self._interval_start_s, self._whole
        self._interval_start_s, self._whole = now_s, True
        asked = self._work.take(INTERVAL_S * self._clock.time_scale)
        if not whole:
            return
        message = Asked(
            site=self._site,
            replica=self._replica,
            interval_start_s=start_s,
            interval_s=int(INTERVAL_S),
            asked=asked,
        )
        try:
            event_id = f"{self._replica}.asked.{start_s}"
            await self._bus.publish_acked(subjects.asked(self._site), message, event_id)
        except UnavailableError as error:
            self._log.warning("what was asked in an interval was not told", error=str(error))

    def _interval(self) -> int:
        return int(self._unix_s() // INTERVAL_S * INTERVAL_S)

    def _unix_s(self) -> float:
        return self._clock.unix_ns() / 1e9
