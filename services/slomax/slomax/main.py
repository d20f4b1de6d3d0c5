"""SLOMax: decides whether and when a placed request runs, one deciding replica per pool.

The deciding replica keeps the queues in memory. Its standbys remember what it has not decided yet, so the one that
takes over goes on with the same requests in the same order; what it missed, ingress asks for again.
"""

from collections import defaultdict

from slomax import events
from slomax.answers import Answers, Asked
from slomax.health import control_of, queues_of
from slomax.policy.admission import Keep, Refuse, Start
from slomax.policy.classify import entry_of
from slomax.policy.entry import Entry
from slomax.policy.places import Place
from slomax.policy.pool import PoolAdmission
from tokenfleet import subjects
from tokenfleet.bus import Delivery
from tokenfleet.contracts.control import GoodputWindow
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.contracts.latency import PoolLatency
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import (
    Admitted,
    Ended,
    FirstToken,
    Placed,
    Refused,
    Retried,
    Routed,
)
from tokenfleet.contracts.sites import Waiting
from tokenfleet.fleet_view import FleetView
from tokenfleet.lease import RENEW_S, Leases
from tokenfleet.live import LivePolicy, LiveTenants, taken_s, watch_fleet, watch_latency
from tokenfleet.load import LoadView, OutputLengths
from tokenfleet.request_events import follow_requests
from tokenfleet.service import Service, run_service
from tokenfleet.settings import Settings

REQUEST_MEMORY_S = 1200.0
"""Engine seconds after which a request whose end was never reported is forgotten."""
RELEASE_EVERY_S = 0.02
"""Wall seconds between two looks at the queues; how often they are really judged is theirs (LOOK_EVERY_S)."""
WAITING_EVERY_S = 0.2
"""How often TokenPilot is told what the queues hold, for its summaries."""
ANNOUNCE_EVERY_S = 2.0
"""Wall seconds between two announcements of what waits: of those that ANNOUNCED_FOR_S covers, two may be lost."""


class SloMax:
    """The service's state and handlers."""

    def __init__(self, service: Service[Settings]) -> None:
        settings = service.settings
        self._service = service
        self._bus = service.bus
        self._clock = service.clock
        self._site = settings.site
        self._fleet = FleetView()
        self._load = LoadView()
        self._lengths: dict[str, OutputLengths] = defaultdict(OutputLengths)
        self._told_waiting: set[str] = set()
        """Pools of which TokenPilot was told that something waits."""
        self._policy = LivePolicy()
        self._tenants = LiveTenants()
        self._leases = Leases(service.bus, service.clock, "slomax", settings.site, settings.replica)
        self._pools: dict[str, PoolAdmission] = {}
        """Of the pools decided here."""
        self._waiting: dict[str, Asked] = {}
        self._undecided: dict[str, tuple[Placed, dict[str, str]]] = {}
        """What another replica has to decide, oldest first."""
        self._answers = Answers(service, self._policy, self._tenants)
        self._observations: dict[str, int] = {}
        """By pool, on how many observations what TokenPilot last said of it rests."""
        self._windows_ignored = 0

    async def start(self) -> None:
        service = self._service
        await self._policy.watch(self._bus)
        await self._tenants.watch(self._bus)
        await watch_fleet(
            self._bus,
            self._site,
            self._clock,
            self._fleet,
            on_state=self._state_arrived,
            on_record=self._record_changed,
        )
        await watch_latency(self._bus, self._site, self._learned)
        await follow_requests(self._bus, self._site, self._clock, self)
        await self._follow_other_replicas()
        await self._bus.subscribe(
            subjects.request_events(self._site, "placed"), Placed, self._placed, ordered=True
        )
        await self._hear_goodput()
        service.every(RENEW_S, self._keep_leases)
        service.every(RELEASE_EVERY_S, self._release)
        service.every(ANNOUNCE_EVERY_S, self._announce)
        service.every(WAITING_EVERY_S, self._tell_waiting)
        service.every(1.0, self._adjust)
        service.every(5.0, self._expire)
        service.on_stop(self._leases.release)
        service.health = self._health

    def _health(self) -> dict[str, object]:
        now_s = self._clock.now_s()
        return {
            "deciding": self._leases.held(),
            "in_flight": len(self._load),
            "observations": self._observations,
            "goodput_windows_ignored": self._windows_ignored,
            "queues": {
                pool: queues_of(admission, self._instances(pool), now_s)
                for pool, admission in self._pools.items()
            },
            "control": {
                pool: control_of(admission, self._policy.current) for pool, admission in self._pools.items()
            },
        }

    # -- what others say

    async def _follow_other_replicas(self) -> None:
        async def decided(event: Admitted | Refused, _: Delivery) -> None:
            self._undecided.pop(event.request_id, None)

        for name, kind in (("admitted", Admitted), ("refused", Refused)):
            subject = subjects.request_events(self._site, name, answer=True)
            await self._bus.subscribe(subject, kind, decided, ordered=True)

    async def _hear_goodput(self) -> None:
        broker = await self._service.broker()

        @broker.subscriber(subjects.goodputs(self._site))
        async def goodput(window: GoodputWindow) -> None:
            admission = self._pools.get(window.pool)
            if admission is None:
                return
            seen = events.evidence(window, self._clock.unix_ns())
            if isinstance(seen, str):
                self._windows_ignored += 1
                self._service.log.warning("goodput window ignored", pool=window.pool, problem=seen)
            else:
                admission.ledger_window(window.request_class, seen)

    def _record_changed(self, instance: str, record: InstanceRecord | None) -> None:
        if record is None:
            self._load.drop_instance(instance)
        else:
            self._load.joined(record)

    def _state_arrived(self, state: InstanceState) -> None:
        self._load.reading(state, taken_s(state, self._clock), self._clock.now_s())

    def _learned(self, learned: PoolLatency) -> None:
        """TokenPilot has learned more; what it says of instances not registered yet is said again soon."""
        self._lengths[learned.pool].restore(learned.lengths)
        self._observations[learned.pool] = sum(each.observations for each in learned.factors.values())
        for instance, factors in learned.factors.items():
            if self._fleet.get(instance) is not None:
                self._load.set_factors(instance, factors.prefill, factors.step)

    def routed(self, event: Routed, now_s: float) -> None:
        """TokenPilot sent a request to an instance."""
        self._load.routed(
            event.request_id,
            event.attempt,
            event.instance,
            event.input_tokens,
            event.reused_tokens,
            now_s,
            tpot_objective_s=event.objective.tpot_s if event.objective else None,
            length_row=self._lengths[event.pool].row(event.input_tokens, event.previous_output_tokens),
            max_output_tokens=event.max_output_tokens,
            streamed=event.stream,
        )

    def first_token(self, event: FirstToken, now_s: float) -> None:
        self._load.first_token(event.request_id, now_s)
        if (admission := self._pools.get(event.pool)) is not None:
            admission.first_token(event.request_id, now_s)

    def retried(self, event: Retried, now_s: float) -> None:
        self._load.ended(event.request_id, event.attempt, now_s)
        if (admission := self._pools.get(event.pool)) is not None:
            admission.attempt_failed(event.request_id)

    def ended(self, event: Ended, now_s: float) -> None:
        self._load.ended(event.request_id, event.attempt, now_s)
        self._answers.ended(event.request_id)
        self._undecided.pop(event.request_id, None)
        self._waiting.pop(event.request_id, None)
        for admission in self._pools.values():
            # Ingress does not know the pool of a request that ends while it waits.
            admission.ended(
                event.request_id,
                now_s,
                completed=event.outcome == "completed",
                output_tokens=event.output_tokens,
                reused_tokens=event.reused_tokens,
                client_left=event.outcome == "cancelled",
            )

    # -- whose decision it is

    async def _keep_leases(self) -> None:
        await self._leases.keep(list(self._fleet.pools()))
        held = set(self._leases.held())
        for pool in self._pools.keys() - held:
            self._drop(pool)
        for pool in held - self._pools.keys():
            self._pools[pool] = PoolAdmission(self._load, self._lengths[pool])
            left_over = [kept for kept in self._undecided.values() if kept[0].pool == pool]
            for event, headers in left_over:
                # It may have ended while the ones before it were answered.
                if self._undecided.pop(event.request_id, None) is not None:
                    await self._consider(self._pools[pool], event, headers)

    def _drop(self, pool: str) -> None:
        """Another replica may decide for a pool now: what waits here is its business."""
        del self._pools[pool]
        for request_id, kept in list(self._waiting.items()):
            if kept.event.pool == pool:
                del self._waiting[request_id]
                self._undecided[request_id] = kept.event, kept.headers

    # -- requests

    async def _placed(self, event: Placed, delivery: Delivery) -> None:
        span = self._service.observability.span(
            "slomax.admit", delivery.headers, {"tokenfleet.request_id": event.request_id}
        )
        with span as headers:
            admission = self._pools.get(event.pool)
            if admission is None or not self._leases.holds(event.pool):
                self._undecided[event.request_id] = event, headers
                return
            await self._consider(admission, event, headers)

    async def _consider(self, admission: PoolAdmission, event: Placed, headers: dict[str, str]) -> None:
        if await self._answers.repeat(event, headers):
            return
        instances = self._fleet.ready(event.pool, self._clock.wall_s())
        kept = self._waiting.get(event.request_id)
        if kept is not None:
            place = admission.place_of(event.request_id, len(instances))
            if place is not None:
                await self._answers.say_queued(kept, place, "asked_again")
                return
        asked = Asked(event, headers, self._entry(event))
        verdict = admission.submit(asked.entry, instances, self._policy.current, self._clock.now_s())
        if isinstance(verdict, Keep):
            self._waiting[event.request_id] = asked
            place = admission.place_of(event.request_id, len(instances))
            await self._answers.say_queued(asked, place or Place(0, 0.0), verdict.reason)
        else:
            await self._answer(asked, verdict)

    def _instances(self, pool: str) -> int:
        return len(self._fleet.ready(pool, self._clock.wall_s()))

    def _entry(self, event: Placed) -> Entry:
        """A request whose wait counts from now: other machines' clocks may be off, and that nobody decided before is no
        sign of a busy fleet."""
        now_s, unix_ns, scale = self._clock.now_s(), self._clock.unix_ns(), self._clock.time_scale
        request = event.request
        policy = self._policy.current
        left_s = (
            (request.deadline_ns - unix_ns) / 1e9 * scale if request.deadline_ns else policy.request_timeout_s
        )
        tenant = self._tenants.by_name.get(event.tenant, Tenant(tenant=event.tenant))
        return entry_of(event.request_id, event.attempt, request, tenant, policy, now_s, now_s, left_s)

    async def _release(self) -> None:
        policy = self._policy.current
        for pool, admission in list(self._pools.items()):
            if not len(admission) or not self._leases.holds(pool):
                continue
            instances = self._fleet.ready(pool, self._clock.wall_s())
            for released in admission.release(instances, policy, self._clock.now_s()):
                kept = self._waiting.pop(released.entry.request_id, None)
                if kept is not None:
                    await self._answer(kept, released.verdict)

    async def _answer(self, asked: Asked, verdict: Start | Refuse) -> None:
        pool, entry = asked.event.pool, asked.entry
        if isinstance(verdict, Start):
            self._credit(pool, entry, verdict, self._clock.now_s())
        kept_free = self._pools[pool].kept_free(entry) if pool in self._pools else ()
        await self._answers.decide(asked, verdict, kept_free)

    def _credit(self, pool: str, entry: Entry, start: Start, now_s: float) -> None:
        """Count it where it will most likely run, until TokenPilot says where it does."""
        if start.instance is None:
            return
        self._load.routed(
            entry.request_id,
            entry.attempt,
            start.instance,
            entry.tokens,
            0,
            now_s,
            tpot_objective_s=entry.objective.tpot_s,
            length_row=self._lengths[pool].row(entry.tokens, None),
            max_output_tokens=entry.request.max_output_tokens,
            streamed=entry.request.stream,
            expected=True,
        )

    # -- now and then

    async def _announce(self) -> None:
        """Tell every ingress that its requests still wait here, and where they stand."""
        for pool, admission in list(self._pools.items()):
            if not len(admission) or not self._leases.holds(pool):
                continue
            for request_id, place in list(admission.places(self._instances(pool))):
                kept = self._waiting.get(request_id)
                if kept is not None:
                    await self._answers.say_queued(kept, place, "waiting")

    async def _tell_waiting(self) -> None:
        """What waits is not at an engine yet, but whoever sends more here has to know of it."""
        for pool, admission in list(self._pools.items()):
            if self._leases.holds(pool) and (len(admission) or pool in self._told_waiting):
                waiting = Waiting(
                    site=self._site, pool=pool, work_s=admission.waiting_s(), requests=len(admission)
                )
                await self._bus.publish(subjects.waiting(self._site, pool), waiting, codec="msgpack")
                (self._told_waiting.add if len(admission) else self._told_waiting.discard)(pool)

    async def _adjust(self) -> None:
        for pool, admission in list(self._pools.items()):
            if not self._leases.holds(pool):
                continue
            for change in admission.adjust(self._policy.current, self._clock.now_s()):
                self._service.log.info(
                    "feedback", pool=pool, knob=change.knob, after=change.after, reason=change.reason
                )
                message = events.adjusted(change, pool, site=self._site, time_ns=self._clock.unix_ns())
                await (await self._service.broker()).publish(message, subjects.control(self._site, pool))

    async def _expire(self) -> None:
        now_s = self._clock.now_s()
        lost = self._load.expire(now_s - REQUEST_MEMORY_S, now_s)
        for admission in self._pools.values():
            admission.expire(now_s - REQUEST_MEMORY_S)
        if lost:
            self._service.log.warning("requests without an end forgotten", count=lost)
        now_ns = self._clock.unix_ns()
        memory_ns = int(REQUEST_MEMORY_S / self._clock.time_scale * 1e9)
        self._answers.forget_before(now_ns - memory_ns)
        self._undecided = {
            request_id: kept
            for request_id, kept in self._undecided.items()
            if now_ns - kept[0].time_ns < memory_ns
        }


async def start(service: Service[Settings]) -> None:
    await SloMax(service).start()


def main() -> None:
    """Run SLOMax until told to stop."""
    run_service("slomax", Settings, start)
