"""TokenPilot: chooses the engine instance of each admitted request, one deciding replica per pool."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from math import inf

from opentelemetry.metrics import Observation

from tokenfleet import subjects
from tokenfleet.blocks import HASH_BYTES, unpack
from tokenfleet.bus import Delivery
from tokenfleet.bus.codec import encode
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.contracts.latency import PoolLatency
from tokenfleet.contracts.requests import Admitted, Ended, FirstToken, Refused, Retried, Routed, next_event
from tokenfleet.contracts.sites import WAITING_VALID_S, SiteSummary, Waiting
from tokenfleet.fleet_view import FleetView
from tokenfleet.lease import RENEW_S, Leases
from tokenfleet.live import LivePolicy, taken_s, watch_fleet, watch_latency
from tokenfleet.request_events import follow_requests
from tokenfleet.service import Service, run_service
from tokenpilot.kv_sync import KvSync
from tokenpilot.policy.assumed_cache import AssumedCaches
from tokenpilot.policy.calibrate import KINDS
from tokenpilot.policy.pilot import Decision, Pilot
from tokenpilot.policy.prefix_index import PrefixIndex
from tokenpilot.settings import TokenPilotSettings

RETRY_AFTER_S = 1.0
PUBLISH_S = 2.0
"""How often what was learned is published, if anything was."""
SUMMARY_S, LOAD_S = 1.0, 0.2
"""How often other sites hear of the pools decided here, and how often this site's FleetMind does, in wall seconds."""


class TokenPilot:
    """The service's state and handlers."""

    def __init__(self, service: Service[TokenPilotSettings]) -> None:
        settings = service.settings
        self._service = service
        self._bus = service.bus
        self._clock = service.clock
        self._site = settings.site
        self._fleet = FleetView()
        self._pilots: dict[str, Pilot] = defaultdict(Pilot)
        self._pool_of: dict[str, str] = {}
        self._index = PrefixIndex()
        self._assumed = AssumedCaches(self._index)
        self._policy = LivePolicy()
        self._kv = KvSync(service.bus, settings.site, self._index, service.clock)
        self._leases = Leases(service.bus, service.clock, "tokenpilot", settings.site, settings.replica)
        self._decided: dict[str, Routed] = {}
        self._published: dict[str, int] = {}
        self._waiting: dict[str, tuple[float, float]] = {}
        """By pool, prefill that SLOMax holds, and until when that is to be believed."""
        self._random = random.Random(settings.seed)  # noqa: S311 - breaks ties, guards nothing

    async def start(self) -> None:
        service = self._service
        await self._policy.watch(self._bus)
        await watch_latency(self._bus, self._site, self._learned_before)
        await self._kv.start()
        await watch_fleet(
            self._bus,
            self._site,
            self._clock,
            self._fleet,
            on_state=self._state_arrived,
            on_record=self._record_changed,
        )
        await follow_requests(self._bus, self._site, self._clock, self)
        await self._bus.subscribe(
            subjects.request_events(self._site, "admitted", answer=True),
            Admitted,
            self._admitted,
            ordered=True,
        )
        await self._bus.subscribe(
            subjects.waitings(self._site), Waiting, self._held_back, codec="msgpack", ordered=True
        )
        service.every(RENEW_S, self._keep_leases)
        service.every(SUMMARY_S, self._publish_summaries)
        service.every(LOAD_S, self._publish_loads)
        service.every(1.0, self._kv.sweep)
        service.every(PUBLISH_S, self._publish)
        service.every(5.0, self._expire)
        service.on_stop(self._leases.release)
        service.health = self._health
        self._instruments()

    def _health(self) -> dict[str, object]:
        qualities = {instance: self._kv.quality(instance) for instance in self._pool_of}
        return {
            "deciding": self._leases.held(),
            "blocks": len(self._index),
            "index": dict(Counter(qualities.values())),
            "degraded": sorted(instance for instance, quality in qualities.items() if quality == "degraded"),
            "kv_snapshots": self._kv.snapshots,
            "observations": {
                pool: sum(factors.observations for factors in pilot.speeds.all().values())
                for pool, pilot in self._pilots.items()
            },
            "in_flight": sum(len(pilot.load) for pilot in self._pilots.values()),
        }

    def _instruments(self) -> None:
        meter = self._service.observability.meter
        self._routed_count = meter.create_counter(
            "tokenfleet.tokenpilot.routed", description="Requests given an instance, by reason."
        )
        meter.create_observable_gauge(
            "tokenfleet.tokenpilot.indexed_blocks",
            callbacks=[lambda _: [Observation(len(self._index))]],
            description="Distinct prefix blocks known to be cached somewhere.",
        )
        meter.create_observable_gauge(
            "tokenfleet.tokenpilot.prediction_error",
            callbacks=[lambda _: self._prediction_errors()],
            description="Absolute error of the predicted median relative to what came, by quantile.",
        )

    def _prediction_errors(self) -> list[Observation]:
        found: list[Observation] = []
        for pool, pilot in list(self._pilots.items()):  # asked for on the exporter's thread
            for kind in KINDS:
                error = pilot.calibration.absolute_error(kind)
                for quantile, value in zip(("p50", "p90"), error or (), strict=False):
                    attributes = {"tokenfleet.pool": pool, "kind": kind, "quantile": quantile}
                    found.append(Observation(value, attributes))
        return found

    async def _keep_leases(self) -> None:
        await self._leases.keep(list(self._fleet.pools()))

    async def _expire(self) -> None:
        now_s = self._clock.now_s()
        before_s = now_s - self._service.settings.request_memory_s
        lost = sum(pilot.expire(before_s, now_s) for pilot in self._pilots.values())
        if lost:
            self._service.log.warning("requests without an end forgotten", count=lost)
        in_flight = sum(len(pilot.load) for pilot in self._pilots.values())
        if len(self._decided) > 2 * in_flight + 1000:
            self._decided = {
                key: routed for key, routed in self._decided.items() if key in self._pilots[routed.pool].load
            }

    # -- the fleet

    def _record_changed(self, instance: str, record: InstanceRecord | None) -> None:
        pool = self._pool_of.get(instance)
        if record is None or (pool is not None and pool != record.pool):
            self._kv.left(instance)
            self._assumed.left(instance)
            if pool is not None:
                self._pilots[pool].left(instance)
                del self._pool_of[instance]
        if record is not None:
            self._pool_of[instance] = record.pool
            self._pilots[record.pool].joined(record)
            if record.kv_events:
                self._kv.joined(instance)

    def _state_arrived(self, state: InstanceState) -> None:
        pool = self._pool_of.get(state.instance)
        if pool is not None:
            self._pilots[pool].reading(state, taken_s(state, self._clock), self._clock.now_s())

    # -- what was learned

    def _learned_before(self, learned: PoolLatency) -> None:
        pilot = self._pilots[learned.pool]
        if not pilot.experienced:
            pilot.restore(learned)

    async def _publish(self) -> None:
        """Publish what the pools decided here have taught since the last time."""
        for pool, pilot in list(self._pilots.items()):
            lessons = pilot.lessons
            if not self._leases.holds(pool) or self._published.get(pool, 0) == lessons:
                continue
            learned = pilot.learned(pool, self._site, self._clock.unix_ns())
            bucket = await self._bus.bucket(subjects.BUCKET_LATENCY)
            await bucket.put(subjects.latency_key(self._site, pool), encode(learned))
            self._published[pool] = lessons  # only now: what NATS did not take is published the next time

    async def _held_back(self, waiting: Waiting, _: Delivery) -> None:
        self._waiting[waiting.pool] = waiting.work_s, self._clock.wall_s() + WAITING_VALID_S

    async def _publish_summaries(self) -> None:
        for pool in self._leases.held():
            summary = self._summary(pool, self._index.told_of)
            await self._bus.publish(subjects.summary(self._site, pool), summary, codec="msgpack")

    async def _publish_loads(self) -> None:
        for pool in self._leases.held():
            await self._bus.publish(
                subjects.load(self._site, pool), self._summary(pool, None), codec="msgpack"
            )

    def _summary(self, pool: str, told_of: Callable[[str], Iterable[int]] | None) -> SiteSummary:
        wall_s = self._clock.wall_s()
        waiting_s, until_s = self._waiting.get(pool, (0.0, wall_s))
        return self._pilots[pool].summary(
            pool,
            self._site,
            self._fleet.ready(pool, wall_s),
            told_of,
            waiting_s if wall_s < until_s else 0.0,
            self._clock.now_s(),
            self._clock.unix_ns(),
        )

    # -- requests

    def routed(self, event: Routed, now_s: float) -> None:
        """A replica, this one or another, chose an instance."""
        self._pilots[event.pool].routed(
            event.request_id,
            event.attempt,
            event.instance,
            event.input_tokens,
            event.reused_tokens,
            now_s,
            objective=event.objective,
            previous_output_tokens=event.previous_output_tokens,
            max_output_tokens=event.max_output_tokens,
            streamed=event.stream,
        )

    def first_token(self, event: FirstToken, now_s: float) -> None:
        self._pilots[event.pool].first_token(event.request_id, now_s)

    def retried(self, event: Retried, now_s: float) -> None:
        self._pilots[event.pool].attempt_failed(event.request_id, event.attempt, now_s)

    def ended(self, event: Ended, now_s: float) -> None:
        self._decided.pop(event.request_id, None)
        if event.pool in self._pilots:
            self._pilots[event.pool].ended(
                event.request_id,
                event.attempt,
                now_s,
                completed=event.outcome == "completed",
                output_tokens=event.output_tokens,
            )

    async def _admitted(self, event: Admitted, delivery: Delivery) -> None:
        if not self._leases.holds(event.pool):
            blocks = event.request.blocks[-HASH_BYTES:]
            self._pilots[event.pool].noted(
                event.request_id,
                event.attempt,
                event.request.input_tokens,
                unpack(blocks)[0] if blocks else None,
            )
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
            if answer is None:
                return
            name = "routed" if isinstance(answer, Routed) else "refused"
            subject = subjects.request(self._site, event.pool, name, request.ingress)
            await self._bus.publish(subject, answer, headers=headers)

    def _decide(self, event: Admitted) -> Routed | Refused | None:
        """The answer; None: not yet, ingress will ask again."""
        blocks = unpack(event.request.blocks)
        matched = self._index.match(blocks)
        wall_s, draw = self._clock.wall_s(), self._random.random()
        decision = self._pilots[event.pool].decide(
            event.request_id,
            event.attempt,
            event.request,
            event.objective,
            blocks,
            self._fleet.ready(event.pool, wall_s),
            matched,
            self._clock.now_s(),
            offloaded_blocks=self._index.offloaded(blocks, matched),
            kept_free=event.kept_free,
            routing=self._policy.current.routing,
            draw=draw,
            quality=self._kv.quality,
            wall_s=wall_s,
        )
        if decision is None:
            return None if self._expects_news(event, wall_s) else self._refusal(event)
        self._assumed.routed(decision.choice.instance.record, blocks)
        routed = self._routed(event, decision, draw)
        self._decided[event.request_id] = routed
        self._routed_count.add(
            1, {"tokenfleet.pool": event.pool, "tokenfleet.reason": decision.choice.reason}
        )
        return routed

    def _routed(self, event: Admitted, decision: Decision, draw: float) -> Routed:
        choice = decision.choice
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
            predicted_ttft_s=decision.ttft_s,
            predicted_ttft_p90_s=decision.ttft_p90_s,
            predicted_tpot_s=decision.tpot_s,
            predicted_tpot_p90_s=decision.tpot_p90_s,
            expected_output_tokens=min(
                decision.expected_output_tokens, event.request.max_output_tokens or inf
            ),
            previous_output_tokens=decision.previous_output_tokens,
            max_output_tokens=event.request.max_output_tokens,
            stream=event.request.stream,
            objective=event.objective,
            draw=draw,
            reason=choice.reason,
            candidates=choice.candidates,
            considered=choice.considered,
            filtered=dict(choice.filtered),
        )

    def _expects_news(self, event: Admitted, wall_s: float) -> bool:
        """Whether an instance may come to be ready at any moment, as all may for a replica that has just started."""
        excluded = event.request.excluded_instances
        unheard = self._fleet.unheard(event.pool, wall_s)
        return any(view.record.instance not in excluded for view in unheard)

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
