"""TokenPilot: chooses the engine instance of each admitted request, one deciding replica per pool."""

import random

from opentelemetry.metrics import Observation

from tokenfleet import subjects
from tokenfleet.blocks import unpack
from tokenfleet.bus import Delivery
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.contracts.requests import Admitted, Refused, Routed, next_event
from tokenfleet.fleet_view import FleetView
from tokenfleet.lease import RENEW_S, Leases
from tokenfleet.live import LivePolicy, watch_fleet
from tokenfleet.load import LoadView
from tokenfleet.request_events import follow_requests
from tokenfleet.service import Service, run_service
from tokenpilot.kv_sync import KvSync
from tokenpilot.policy.choose import Choice, choose
from tokenpilot.policy.prefix_index import AssumedCache, PrefixIndex
from tokenpilot.settings import TokenPilotSettings

RETRY_AFTER_S = 1.0


class TokenPilot:
    """The service's state and handlers."""

    def __init__(self, service: Service[TokenPilotSettings]) -> None:
        settings = service.settings
        self._service = service
        self._bus = service.bus
        self._clock = service.clock
        self._site = settings.site
        self._fleet = FleetView()
        self._load = LoadView()
        self._index = PrefixIndex()
        self._assumed: dict[str, AssumedCache] = {}
        self._policy = LivePolicy()
        self._kv = KvSync(service.bus, settings.site, self._index)
        self._leases = Leases(service.bus, service.clock, "tokenpilot", settings.site, settings.replica)
        self._decided: dict[str, Routed] = {}
        self._turns: dict[str, int] = {}
        self._random = random.Random(settings.seed)  # noqa: S311 - breaks ties, guards nothing

    async def start(self) -> None:
        service = self._service
        await self._policy.watch(self._bus)
        await self._kv.start()
        await watch_fleet(self._bus, self._site, self._clock, self._fleet, on_record=self._record_changed)
        await follow_requests(self._bus, self._site, self._clock, self._load, on_ended=self._forget)
        await self._bus.subscribe(
            subjects.request_events(self._site, "admitted", answer=True),
            Admitted,
            self._admitted,
            ordered=True,
        )
        service.every(RENEW_S, self._keep_leases)
        service.every(5.0, self._expire)
        service.on_stop(self._leases.release)
        service.health = lambda: {
            "deciding": self._leases.held(),
            "blocks": len(self._index),
            "kv_snapshots": self._kv.snapshots,
        }
        self._routed_count = service.observability.meter.create_counter(
            "tokenfleet.tokenpilot.routed", description="Requests given an instance, by reason."
        )
        service.observability.meter.create_observable_gauge(
            "tokenfleet.tokenpilot.indexed_blocks",
            callbacks=[lambda _: [Observation(len(self._index))]],
            description="Distinct prefix blocks known to be cached somewhere.",
        )

    async def _keep_leases(self) -> None:
        await self._leases.keep(list(self._fleet.pools()))

    async def _expire(self) -> None:
        lost = self._load.expire(self._clock.now_s() - self._service.settings.request_memory_s)
        if lost:
            self._service.log.warning("requests without an end forgotten", count=lost)
        if len(self._decided) > 2 * len(self._load) + 1000:
            self._decided = {key: routed for key, routed in self._decided.items() if key in self._load}

    def _record_changed(self, instance: str, record: InstanceRecord | None) -> None:
        if record is None:
            self._kv.left(instance)
            self._load.drop_instance(instance)
            self._assumed.pop(instance, None)
        elif record.kv_events:
            self._kv.joined(instance)

    def _forget(self, request_id: str) -> None:
        self._decided.pop(request_id, None)

    async def _admitted(self, event: Admitted, delivery: Delivery) -> None:
        if not self._leases.holds(event.pool):
            return
        request = event.request
        with self._service.observability.span(
            "tokenpilot.choose", delivery.headers, {"tokenfleet.request_id": event.request_id}
        ) as headers:
            routed = self._decided.get(event.request_id)
            if routed is None or routed.attempt != event.attempt:
                answer = self._decide(event)
            else:
                answer = routed  # ingress asked again: the same answer, under the same event id
            name = "routed" if isinstance(answer, Routed) else "refused"
            subject = subjects.request(self._site, event.pool, name, request.ingress)
            await self._bus.publish(subject, answer, headers=headers)

    def _decide(self, event: Admitted) -> Routed | Refused:
        request, now_s = event.request, self._clock.now_s()
        blocks = unpack(request.blocks)
        turn = self._turns.get(event.pool, 0)
        choice = choose(
            request,
            self._fleet.ready(event.pool, self._clock.wall_s()),
            self._index.match(blocks),
            self._load,
            now_s,
            routing=self._policy.current.routing,
            turn=turn,
            draw=self._random.random(),
        )
        if choice is None:
            return self._refusal(event)
        self._turns[event.pool] = turn + 1
        instance = choice.instance.record.instance
        self._load.routed(
            event.request_id, event.attempt, instance, request.input_tokens, choice.reused_tokens, now_s
        )
        self._assume_cached(choice, blocks)
        routed = self._routed(event, choice)
        self._decided[event.request_id] = routed
        self._routed_count.add(1, {"tokenfleet.pool": event.pool, "tokenfleet.reason": choice.reason})
        return routed

    def _assume_cached(self, choice: Choice, blocks: list[int]) -> None:
        record = choice.instance.record
        if record.kv_events or not blocks:
            return
        cache = self._assumed.get(record.instance)
        if cache is None:
            capacity = record.profile.kv_capacity_tokens // record.block_size_tokens
            cache = self._assumed[record.instance] = AssumedCache(capacity)
        self._index.remove(record.instance, cache.routed(blocks))
        self._index.store(record.instance, blocks)

    def _routed(self, event: Admitted, choice: Choice) -> Routed:
        record = choice.instance.record
        return next_event(
            Routed,
            "routed",
            event,
            site=self._site,
            time_ns=self._clock.unix_ns(),
            instance=record.instance,
            generation=record.generation,
            input_tokens=event.request.input_tokens,
            reused_tokens=choice.reused_tokens,
            predicted_ttft_s=choice.predicted_ttft_s,
            predicted_tpot_s=choice.predicted_tpot_s,
            reason=choice.reason,
            candidates=choice.candidates,
        )

    def _refusal(self, event: Admitted) -> Refused:
        return next_event(
            Refused,
            "refused",
            event,
            site=self._site,
            time_ns=self._clock.unix_ns(),
            status=503,
            reason="no_usable_instance",
            message=f"No instance of {event.pool} can take this request right now.",
            retry_after_s=RETRY_AFTER_S,
            objective=event.objective,
        )


async def start(service: Service[TokenPilotSettings]) -> None:
    await TokenPilot(service).start()


def main() -> None:
    """Run TokenPilot until told to stop."""
    run_service("tokenpilot", TokenPilotSettings, start)
