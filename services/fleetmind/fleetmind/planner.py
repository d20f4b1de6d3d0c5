"""The long loop: one replica per site, by lease, plans how many replicas each pool should have, and says so.

Of the sites that hear each other the first by name plans for all; one that is cut off plans for itself.
"""

import asyncio
from math import inf

from fleetmind.plan_page import PlanPage
from fleetmind.policy.placement import Placer
from fleetmind.policy.planning.book import AskedBook
from fleetmind.policy.planning.fleet import (
    Begun,
    as_message,
    demands,
    horizon_of,
    limits,
    planned_sites,
    pools_now,
    round_trips_s,
    says_the_same,
)
from fleetmind.policy.planning.model import PoolNow
from fleetmind.policy.planning.planner import PLAN_EVERY_S, Planner
from tokenfleet import subjects
from tokenfleet.bus import Delivery
from tokenfleet.bus.codec import decode
from tokenfleet.contracts.control import Plan
from tokenfleet.contracts.sites import Asked
from tokenfleet.errors import ContractError, UnavailableError
from tokenfleet.lease import RENEW_S, Leases
from tokenfleet.live import LivePolicy
from tokenfleet.service import Service
from tokenfleet.settings import Settings

LEASE = "plan"
"""Beside the leases of pools, whose names have a version."""
LOOK_EVERY_S = 1.0
KEPT_EVERY_S = 300.0
"""A plan that stays the same is put on record again after this time."""
REMEMBERED_NS = 3 * 86_400 * 10**9
"""What was asked before is of no use for a forecast: a day's course is learned from two or three."""


class Planning:
    """What one replica knows of demand, and what it plans while it has the lease."""

    def __init__(self, service: Service[Settings], placer: Placer, policy: LivePolicy) -> None:
        settings = service.settings
        self._service = service
        self._bus = service.bus
        self._clock = service.clock
        self._log = service.log
        self._site = settings.site
        self._placer = placer
        self._policy = policy
        self._leases = Leases(service.bus, service.clock, "fleetmind", settings.site, settings.replica)
        self._book = AskedBook()
        self._begun = Begun()
        self._planner = Planner()
        self._planned_s = -inf
        self._kept: Plan | None = None
        self._why_none = "FleetMind has just started."
        self.page = PlanPage(settings.site, service.clock.wall_s, lambda: self._why_none)

    async def start(self) -> None:
        """Learn what was asked for before, and follow what is."""
        broker = await self._service.broker()

        @broker.subscriber(subjects.ALL_PLANS)
        async def plan(message: Plan) -> None:
            self.page.heard(message)

        await self._bus.subscribe(subjects.ALL_ASKED, Asked, self._asked, ordered=True)
        await self._recall()
        self.page.add_to(self._service.admin_app)
        self._service.every(RENEW_S, self._keep)
        self._service.every(LOOK_EVERY_S, self._look)
        self._service.on_stop(self._leases.release)

    def health(self) -> dict[str, object]:
        """Whether this replica plans, and how old the plan is that it knows."""
        latest = self.page.latest
        age_s = None if latest is None else round((self._clock.unix_ns() - latest.time_ns) / 1e9, 1)
        return {"planning": self._leases.holds(LEASE), "plan_age_s": age_s}

    async def _asked(self, message: Asked, _: Delivery) -> None:
        self._book.add(message)

    async def _recall(self) -> None:
        from_ns = self._clock.unix_ns() - REMEMBERED_NS
        try:
            async for stored in self._bus.read_stored(subjects.STREAM_FLEET, [subjects.ALL_ASKED], from_ns):
                self._book.add(decode(stored.data, Asked))
        except (UnavailableError, ContractError) as error:
            self._log.warning("demand of before is not known; forecasts begin anew", error=str(error))

    async def _keep(self) -> None:
        await self._leases.keep([LEASE])

    async def _look(self) -> None:
        now_s, sites = self._clock.wall_s(), self._sites()
        pools = pools_now(self._placer.sites, sites, self._policy.current, self._begun, now_s)
        if not pools:
            self._why_none = "no collector has told of any engine, and fleet.scaling.pools names none."
            return
        self._book.close(self._clock.unix_ns() / 1e9, lambda model: horizon_of(pools, model))
        if now_s - self._planned_s >= PLAN_EVERY_S and self._is_due(sites):
            self._planned_s = now_s
            await self._plan(sites, pools, now_s)

    def _sites(self) -> list[str]:
        telling = self._book.sites(self._clock.unix_ns() / 1e9)
        return planned_sites(self._placer.sites, self._site, telling, self._clock.wall_s())

    def _is_due(self, sites: list[str]) -> bool:
        """Whether it is this replica that plans, and knows what for."""
        if not self._leases.holds(LEASE):
            # What others planned meanwhile is not known: whoever takes over holds what runs for a while.
            self._planner = Planner()
            self._why_none = "another replica of FleetMind here has the lease to plan, and has said nothing."
        elif sites[0] != self._site:
            self._planner = Planner()
            self._why_none = f"site {sites[0]} plans for all that it hears, and has said nothing."
        elif self._site not in self._book.sites(self._clock.unix_ns() / 1e9):
            self._why_none = (
                "demand is counted for the first time: a plan follows when one to two minutes are over."
            )
        else:
            return True
        return False

    async def _plan(self, sites: list[str], pools: list[PoolNow], now_s: float) -> None:
        policy = self._policy.current
        scaling = policy.fleet.scaling
        expected = self._book.expected(set(sites), lambda model: horizon_of(pools, model))
        plan = await asyncio.to_thread(
            self._planner.plan,
            pools,
            limits(sites, policy),
            demands(expected),
            round_trips_s(self._site, sites, self._placer.measured_s, policy),
            now_s,
        )
        if scaling.dry_run:
            self._begun.forget()
        else:
            self._begun.wanted(plan, now_s)
        message = as_message(
            plan,
            pools,
            expected,
            site=self._site,
            covers=sites,
            dry_run=scaling.dry_run,
            time_ns=self._clock.unix_ns(),
        )
        await (await self._service.broker()).publish(message, subjects.plan(self._site))
        await self._keep_on_record(message)

    async def _keep_on_record(self, plan: Plan) -> None:
        kept = self._kept
        if (
            kept is not None
            and says_the_same(kept, plan)
            and plan.time_ns - kept.time_ns < KEPT_EVERY_S * 1e9
        ):
            return
        try:
            data, event_id = plan.model_dump_json().encode(), f"{self._site}.planned.{plan.time_ns}"
            await self._bus.publish_acked(subjects.planned(self._site), data, event_id)
            self._kept = plan
        except UnavailableError as error:
            self._log.warning("a plan was not kept", error=str(error))
