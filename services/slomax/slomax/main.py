"""SLOMax: decides whether a placed request runs, one deciding replica per pool."""

from collections import defaultdict

from slomax.policy.admission import Admit, Decision, decide
from slomax.policy.classify import classify, objective_for
from tokenfleet import subjects
from tokenfleet.bus import Delivery
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.contracts.latency import PoolLatency
from tokenfleet.contracts.requests import (
    Admitted,
    Ended,
    FirstToken,
    Objective,
    Placed,
    Refused,
    Retried,
    Routed,
    next_event,
)
from tokenfleet.fleet_view import FleetView
from tokenfleet.lease import RENEW_S, Leases
from tokenfleet.live import LivePolicy, taken_s, watch_fleet, watch_latency
from tokenfleet.load import LoadView, OutputLengths
from tokenfleet.request_events import follow_requests
from tokenfleet.service import Service, run_service
from tokenfleet.settings import Settings

REQUEST_MEMORY_S = 1200.0
"""Engine seconds after which a request whose end was never reported is forgotten."""


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
        self._policy = LivePolicy()
        self._leases = Leases(service.bus, service.clock, "slomax", settings.site, settings.replica)
        self._answers: dict[str, Admitted | Refused] = {}
        self._observations: dict[str, int] = {}
        """By pool, on how many observations what TokenPilot last said of it rests."""

    async def start(self) -> None:
        service = self._service
        await self._policy.watch(self._bus)
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
        await self._bus.subscribe(
            subjects.request_events(self._site, "placed"), Placed, self._placed, ordered=True
        )
        service.every(RENEW_S, self._keep_leases)
        service.every(5.0, self._expire)
        service.on_stop(self._leases.release)
        service.health = lambda: {
            "deciding": self._leases.held(),
            "in_flight": len(self._load),
            "observations": self._observations,
        }
        self._decisions = service.observability.meter.create_counter(
            "tokenfleet.slomax.decisions", description="Requests admitted and refused, by class and reason."
        )

    async def _keep_leases(self) -> None:
        await self._leases.keep(list(self._fleet.pools()))

    async def _expire(self) -> None:
        now_s = self._clock.now_s()
        lost = self._load.expire(now_s - REQUEST_MEMORY_S, now_s)
        if lost:
            self._service.log.warning("requests without an end forgotten", count=lost)
        now_ns = self._clock.unix_ns()
        memory_ns = int(REQUEST_MEMORY_S / self._clock.time_scale * 1e9)
        self._answers = {
            request_id: answer
            for request_id, answer in self._answers.items()
            if now_ns - answer.time_ns < memory_ns
        }

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
        )

    def first_token(self, event: FirstToken, now_s: float) -> None:
        self._load.first_token(event.request_id, now_s)

    def retried(self, event: Retried, now_s: float) -> None:
        self._load.ended(event.request_id, event.attempt, now_s)

    def ended(self, event: Ended, now_s: float) -> None:
        self._load.ended(event.request_id, event.attempt, now_s)
        self._answers.pop(event.request_id, None)

    async def _placed(self, event: Placed, delivery: Delivery) -> None:
        if not self._leases.holds(event.pool):
            return
        with self._service.observability.span(
            "slomax.admit", delivery.headers, {"tokenfleet.request_id": event.request_id}
        ) as headers:
            answer = self._answers.get(event.request_id)
            if answer is None or answer.attempt != event.attempt:
                answer = self._answers[event.request_id] = self._decide(event)
            name = "admitted" if isinstance(answer, Admitted) else "refused"
            subject = subjects.request(self._site, event.pool, name, event.request.ingress)
            await self._bus.publish(subject, answer, headers=headers)

    def _judge(self, event: Placed, objective: Objective) -> Decision:
        policy = self._policy.current
        if event.attempt > 1:
            # It was admitted once already: refusing the retry now would break that promise.
            return Admit(None, "retry")
        if not policy.admission:
            return Admit(None, "admission_off")
        return decide(
            event.request,
            objective,
            self._fleet.ready(event.pool, self._clock.wall_s()),
            self._load,
            self._lengths[event.pool],
            self._clock.now_s(),
            wait_share_of_slack=policy.wait_share_of_slack,
        )

    def _count(self, request_class: str, decision: Decision) -> None:
        attributes = {
            "tokenfleet.class": request_class,
            "tokenfleet.decision": "admitted" if isinstance(decision, Admit) else "refused",
            "tokenfleet.reason": decision.reason,
        }
        self._decisions.add(1, attributes)

    def _decide(self, event: Placed) -> Admitted | Refused:
        request = event.request
        request_class, class_reason = classify(request, self._policy.current)
        objective = objective_for(request_class, request, self._policy.current)
        decision = self._judge(event, objective)
        self._count(request_class, decision)
        if isinstance(decision, Admit):
            return next_event(
                Admitted,
                "admitted",
                event,
                site=self._site,
                time_ns=self._clock.unix_ns(),
                request_class=request_class,
                request=request,
                objective=objective,
                reason=f"{decision.reason}; class by {class_reason}",
                predicted_ttft_s=decision.predicted_ttft_s,
            )
        return next_event(
            Refused,
            "refused",
            event,
            site=self._site,
            time_ns=self._clock.unix_ns(),
            request_class=request_class,
            status=decision.status,
            reason=decision.reason,
            message=decision.message,
            retry_after_s=decision.retry_after_s,
            objective=objective,
        )


async def start(service: Service[Settings]) -> None:
    await SloMax(service).start()


def main() -> None:
    """Run SLOMax until told to stop."""
    run_service("slomax", Settings, start)
