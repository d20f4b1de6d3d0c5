"""Telemetry collector: who is alive, how full is each pool; published each second, kept, exported.

Also keeps a record of the situation (instances, policy, tenants), so that a window of time can be run again later.
"""

from aiohttp import web

from telemetry_collector.export import export
from telemetry_collector.policy.rollup import gone, roll_up, roll_up_site
from telemetry_collector.policy.situation import ReadingInterval, SituationLog, describe
from tokenfleet import subjects
from tokenfleet.contracts.control import Capacity, SiteCapacity
from tokenfleet.contracts.fleet import InstanceRecord, SiteRegistry
from tokenfleet.errors import UnavailableError
from tokenfleet.fleet_view import FleetView, Liveness
from tokenfleet.live import LivePolicy, LiveTenants, watch_fleet
from tokenfleet.service import Service, run_service
from tokenfleet.settings import Settings

CAPACITY_EVERY_S = 1.0
LIVENESS_EVERY_S = 0.2
HISTORY_EVERY_S = 10.0
SITUATION_EVERY_S = 0.5


class TelemetryCollector:
    """The service's state and periodic work."""

    def __init__(self, service: Service[Settings]) -> None:
        self._service = service
        self._clock = service.clock
        self._site = service.settings.site
        self._fleet = FleetView()
        self._latest: list[Capacity] = []
        self._liveness: dict[str, Liveness] = {}
        self._policy = LivePolicy()
        self._tenants = LiveTenants()
        self._interval = ReadingInterval()
        self._situations = SituationLog()

    async def start(self) -> None:
        service = self._service
        await service.broker()
        await watch_fleet(
            service.bus,
            self._site,
            self._clock,
            self._fleet,
            on_state=self._interval.heard,
            on_record=self._record_changed,
        )
        await self._policy.watch(service.bus)
        await self._tenants.watch(service.bus)
        export(service.observability.meter, lambda: self._latest, self._site_capacity)
        service.admin_app.router.add_get("/v1/fleet", self._fleet_page)
        service.every(CAPACITY_EVERY_S, self._publish_capacity)
        service.every(LIVENESS_EVERY_S, self._note_liveness)
        service.every(HISTORY_EVERY_S, self._keep_history)
        service.every(SITUATION_EVERY_S, self._keep_situation)
        service.health = lambda: self._site_capacity().model_dump(exclude={"time_ns"})

    def _record_changed(self, instance: str, record: InstanceRecord | None) -> None:
        if record is None:
            self._interval.left(instance)

    def _site_capacity(self) -> SiteCapacity:
        return roll_up_site(self._latest, self._site, self._clock.unix_ns())

    async def _publish_capacity(self) -> None:
        time_ns = self._clock.unix_ns()
        latest = roll_up(self._fleet, self._site, self._clock.wall_s(), time_ns)
        left = {pool.pool for pool in self._latest} - {pool.pool for pool in latest}
        broker = await self._service.broker()
        if not broker.running:
            return  # the service is still starting
        for capacity in [*latest, *(gone(pool, self._site, time_ns) for pool in sorted(left))]:
            await broker.publish(capacity, subjects.capacity(self._site, capacity.pool))
        self._latest = latest
        if len(self._service.settings.fleet_sites) > 1:
            await self._tell_other_sites()

    async def _tell_other_sites(self) -> None:
        now_s = self._clock.wall_s()
        registry = SiteRegistry(
            site=self._site,
            time_ns=self._clock.unix_ns(),
            instances=tuple(view.record for view in self._fleet.instances()),
            ready=frozenset(
                view.record.instance
                for pool in self._fleet.pools()
                for view in self._fleet.ready(pool, now_s)
            ),
        )
        await self._service.bus.publish(subjects.registry(self._site), registry, codec="msgpack")

    async def _note_liveness(self) -> None:
        now_s = self._clock.wall_s()
        liveness: dict[str, Liveness] = {
            view.record.instance: view.liveness(now_s) for view in self._fleet.instances()
        }
        changed = {name: grade for name, grade in liveness.items() if self._liveness.get(name) != grade}
        left = self._liveness.keys() - liveness.keys()
        for name, grade in changed.items():
            log = self._service.log.info if grade == "alive" else self._service.log.warning
            log("instance " + grade, instance=name, before=self._liveness.get(name, "unknown"))
        for name in left:
            self._service.log.info("instance left", instance=name)
        self._liveness = liveness
        if changed or left:
            # Nobody should have to wait for the next second to hear of a death or a new instance.
            await self._publish_capacity()

    async def _keep_history(self) -> None:
        for capacity in self._latest:
            subject = subjects.history(self._site, capacity.pool)
            event_id = f"{self._site}.{capacity.pool}.{capacity.time_ns}"
            try:
                await self._service.bus.publish_acked(subject, capacity.model_dump_json().encode(), event_id)
            except UnavailableError as error:
                self._service.log.warning("a history sample was not kept", error=str(error))

    async def _keep_situation(self) -> None:
        now_s = self._clock.wall_s()
        situation = describe(
            self._fleet,
            self._policy.current,
            self._tenants.by_name.values(),
            site=self._site,
            time_scale=self._clock.time_scale,
            telemetry_interval_s=self._interval.mean_s,
            now_s=now_s,
            time_ns=self._clock.unix_ns(),
        )
        due = self._situations.due(situation, now_s)
        if due is None:
            return
        event_id = f"{self._site}.situation.{due.time_ns}"
        try:
            await self._service.bus.publish_acked(subjects.situation(self._site), due, event_id)
            self._situations.said(due, now_s)
        except UnavailableError as error:
            self._service.log.warning("the situation was not kept; trying again", error=str(error))

    async def _fleet_page(self, _: web.Request) -> web.Response:
        return web.json_response([capacity.model_dump() for capacity in self._latest])


async def start(service: Service[Settings]) -> None:
    await TelemetryCollector(service).start()


def main() -> None:
    """Run the telemetry collector until told to stop."""
    run_service("telemetry-collector", Settings, start)
