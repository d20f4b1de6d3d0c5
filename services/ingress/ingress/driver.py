"""Does for one request what its life cycle asks for: publish, wait, call the engine, relay, answer."""

import asyncio
from dataclasses import dataclass, replace

import structlog
from aiohttp import web

from ingress import answers
from ingress.client_answer import ClientAnswer
from ingress.engine_connection import EngineError
from ingress.errors import ApiError
from ingress.gateway import Gateway
from ingress.policy.happenings import (
    Answer,
    Ask,
    CallEngine,
    ClientGone,
    DeadlinePassed,
    DecisionTimedOut,
    EngineCompleted,
    EngineFailed,
    EngineRejected,
    FallBack,
    Finish,
    FirstTokenArrived,
    Happening,
    IngressStopping,
    InternalError,
    Step,
    TurnedAway,
    Wait,
)
from ingress.policy.lifecycle import Lifecycle
from ingress.policy.token_rate import Reservation, used_tokens
from ingress.sse import EventRelay
from ingress.upstream import EngineAnswer
from ingress.validation import Operation
from tokenfleet import residency, subjects
from tokenfleet.bus.connection import MESSAGE_ID
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.contracts.requests import Event, Retried
from tokenfleet.contracts.sites import Fared

log = structlog.get_logger(__name__)

PATHS: dict[Operation, str] = {"chat": "/v1/chat/completions", "text_completion": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is sent to the engine."""

    operation: Operation
    body: bytes
    stream: bool
    strip_usage: bool
    """The stream's usage event was asked for by ingress, not by the client."""


class RequestDriver:
    """The I/O of one request. `serve` or `turn_away` runs once."""

    def __init__(
        self,
        gateway: Gateway,
        life: Lifecycle,
        engine_request: EngineRequest,
        client: web.Request | None,
        trace: dict[str, str],
        reservation: Reservation | None = None,
    ) -> None:
        """`client` is None for a request of this process's own, whose answer is not streamed."""
        self.request_id = life.request_id
        self.tenant = life.tenant
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._gateway = gateway
        self._life = life
        self._engine_request = engine_request
        self._client = ClientAnswer(life, client)
        self._trace = trace
        self._reservation = reservation
        self._timer: asyncio.Timeout | None = None
        self._stopped = False
        self._relay: EventRelay | None = None
        self._tokens_per_event = 1

    @property
    def internal(self) -> bool:
        """Whether this process asks for it itself, for a batch."""
        return self._client.internal

    @property
    def retry_after_s(self) -> float | None:
        """When a request that is over may be sent again, if that was said."""
        return self._life.finish.retry_after_s if self._life.finish else None

    # -- the whole life

    async def serve(self) -> web.StreamResponse:
        """Run the request to its end and answer the client.

        Raises:
            ApiError: 503, the request was not accepted because the journal cannot be written.
        """
        gateway, life = self._gateway, self._life
        try:
            gateway.journal.accepted(life.submitted())
        except OSError as error:
            log.exception("journal cannot be written")
            self._settle_tokens(0)
            message = "This ingress cannot account for requests now."
            raise ApiError(503, message, code="journal_unavailable", retry_after_s=1.0) from error
        gateway.enter(self)
        try:
            await self._run()
        except asyncio.CancelledError:
            self._tell(ClientGone(self._output_tokens()))
            raise
        except ConnectionResetError:
            self._tell(ClientGone(self._output_tokens()))
        except Exception:
            log.exception("request failed", request_id=life.request_id)
            self._tell(InternalError(self._output_tokens()))
        finally:
            gateway.leave(self)
            self._settle()
        return await self._client.end(self._finish())

    async def turn_away(self, refusal: TurnedAway) -> web.StreamResponse:
        """Refuse the request before anything was asked; it has an outcome like any other."""
        self._tell(refusal)
        self._settle()
        return await self._client.end(self._finish())

    def stop(self) -> None:
        """End the request now, because this process is stopping."""
        self._stopped = True
        self._set_timer(asyncio.get_running_loop().time())

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(None) as self._timer:
                self._follow_deadline()
                step = self._life.begin()
                while not isinstance(step, Finish):
                    step = await self._perform(step)
        except TimeoutError:
            happening = IngressStopping if self._stopped else DeadlinePassed
            self._tell(happening(self._output_tokens()))

    def _follow_deadline(self) -> None:
        """Give up when the life cycle says that nobody waits any more."""
        deadline_s = self._life.deadline_s
        if deadline_s is not None and not self._stopped:
            clock = self._gateway.clock
            left_s = max(0.0, deadline_s - clock.now_s()) / clock.time_scale
            self._set_timer(asyncio.get_running_loop().time() + left_s)

    def _set_timer(self, when_s: float) -> None:
        # One that has gone off is about to end the request in any case.
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(when_s)

    async def _perform(self, step: Step) -> Step:
        match step:
            case Ask():
                return await self._ask(step)
            case Wait():
                return await self._await_answer(step.for_s)
            case FallBack():
                return self._fall_back(step)
            case CallEngine():
                return await self._call_engine(step.instance)
            case Finish():
                return step

    def _tell(self, happening: Happening) -> Step:
        return self._life.receive(happening, self._gateway.now())

    async def _publish_facts(self) -> None:
        for fact in self._life.take_facts():
            event = fact.event_id.rpartition(".")[2]
            await self._publish(subjects.request(fact.site, fact.pool, event), fact)
            if isinstance(fact, Retried):
                log.warning(
                    "retried",
                    request_id=fact.request_id,
                    attempt=fact.attempt,
                    instance=fact.instance,
                    reason=fact.reason,
                )
                self._gateway.metrics.retried.add(1, {"tokenfleet.reason": fact.reason})

    async def _publish(self, subject: str, event: Event) -> None:
        # The id lets the stream keep one copy of what is submitted again.
        headers = {MESSAGE_ID: event.event_id, **self._trace}
        await self._gateway.bus.publish(subject, event, headers=headers)

    def _tell_fared(self, fared: Fared) -> None:
        """Tell this site's FleetMind, which placed the request. Nobody waits for this."""
        gateway = self._gateway
        subject = subjects.fared(gateway.settings.site)
        gateway.bus.spawn(gateway.bus.publish(subject, fared, codec="msgpack"))

    def _settle(self) -> None:
        """Record the outcome. Nothing here waits, so that no cancellation can come between."""
        gateway, ended = self._gateway, self._finish().ended
        try:
            gateway.journal.ended(ended)
        except OSError:
            log.exception("journal cannot be written", request_id=ended.request_id)
        self._settle_tokens(used_tokens(ended))
        gateway.outbox.put(ended, self._trace)
        self._tell_fared(self._life.fared(ended))
        gateway.metrics.ended(ended, self._engine_request.operation)
        log.debug("ended", request_id=ended.request_id, outcome=ended.outcome, reason=ended.reason)

    def _finish(self) -> Finish:
        finish = self._life.finish
        assert finish is not None
        return finish

    def _settle_tokens(self, used: int) -> None:
        if self._reservation is not None:
            self._gateway.token_rates.settle(self._reservation, used)

    # -- deciding

    async def _ask(self, step: Ask) -> Step:
        submitted = step.submitted
        await self._publish(subjects.request(submitted.site, submitted.pool, "submitted"), submitted)
        return await self._await_answer()

    async def _await_answer(self, for_s: float | None = None) -> Step:
        """Wait for a decider, in wall seconds; None: for as long as a decision may take."""
        if for_s is None:
            for_s = self._gateway.settings.ingress_decision_timeout_s
        try:
            async with asyncio.timeout(for_s):
                step = self._tell(await self.answers.get())
            self._follow_deadline()
            return step
        except TimeoutError:
            step = self._tell(DecisionTimedOut())
            if isinstance(step, Ask):
                self._gateway.metrics.resubmitted.add(1)
            return step

    def _fall_back(self, step: FallBack) -> Step:
        request = self._life.request
        choice = self._gateway.fall_back(request, self._life.tenant, step.excluded)
        log.warning(
            "no decider answers; routing alone",
            request_id=self._life.request_id,
            model=request.model,
            instance=choice.instance,
        )
        self._gateway.metrics.degraded.add(1, {"gen_ai.request.model": request.model})
        return self._tell(choice)

    # -- the engine

    async def _call_engine(self, instance: str) -> Step:
        site = self._life.site
        record = self._gateway.record_of(site, instance)
        if record is None:
            # Only registered addresses are ever called.
            return await self._engine_failed(EngineFailed("instance_not_registered", reached=False))
        request_spec = self._life.request
        tenant = self._gateway.tenants.by_name.get(self._life.tenant)
        if forbidden := residency.refusal(request_spec, tenant, record.site, record.region):
            # Whatever was decided, and by whom: what may not leave is not sent.
            log.error("not sent", request_id=self._life.request_id, instance=instance, reason=forbidden)
            return await self._engine_failed(EngineFailed(forbidden, reached=False))
        self._life.profile = record.profile
        self._relay, self._tokens_per_event = None, max(1, record.tokens_per_chunk)
        request = self._engine_request
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if request.stream else "application/json",
            "x-request-id": self._life.request_id,
            **self._trace,
        }
        local = site == self._gateway.settings.site
        self._gateway.at_instance[instance] += local
        answer: EngineAnswer | None = None
        try:
            answer = await self._gateway.engines.post(
                record.url,
                PATHS[request.operation],
                headers,
                request.body,
                proxy=self._gateway.settings.ingress_site_proxies.get(site),
            )
            return await self._relay_answer(answer, record)
        except EngineError as error:
            failure = EngineFailed(error.reason, error.reached, self._output_tokens())
            return await self._engine_failed(failure)
        finally:
            if answer is not None:
                answer.close()
            self._gateway.at_instance[instance] -= local

    async def _relay_answer(self, answer: EngineAnswer, record: InstanceRecord) -> Step:
        if answer.status == 200 and answer.headers.get("content-type", "").startswith("text/event-stream"):
            if self.internal:
                return await self._engine_failed(EngineFailed("engine_streamed_unasked"))
            return await self._relay_stream(answer, record)
        limit_bytes = self._gateway.settings.ingress_max_answer_bytes
        if answer.status == 200:
            body = await answer.read_all(limit_bytes)
            reading = answers.read(body)
            if reading.error:
                return await self._engine_failed(EngineFailed("engine_error"))
            self._client.keep(answer, body, record.instance)
            return self._tell(EngineCompleted(reading.finish_reason or "unknown", 0, reading.usage))
        if 400 <= answer.status < 500:
            self._client.keep(answer, await answer.read_all(limit_bytes), record.instance)
            return self._tell(EngineRejected(answer.status))
        return await self._engine_failed(EngineFailed(f"engine_status_{answer.status}"))

    async def _relay_stream(self, answer: EngineAnswer, record: InstanceRecord) -> Step:
        """Relay events as they come. Until the first token they are held, so that another attempt is possible."""
        relay = self._relay = EventRelay(strip_usage=self._engine_request.strip_usage)
        client = self._client
        held = b""
        while chunk := await answer.read():
            events = held + relay.feed(chunk)
            held = b""
            if not client.streaming:
                if not relay.has_token:
                    held = events
                    continue
                self._tell(FirstTokenArrived())
                await self._publish_facts()
                if self._life.site != self._gateway.settings.site:
                    self._tell_fared(self._life.fared())
                await client.begin_stream(answer, record.instance)
            await client.write(events)
        held += relay.finish()
        end = relay.end()
        if end.error or not end.whole:
            if end.error and client.streaming:
                await client.write(held, says_error=True)
            reason = "engine_error" if end.error else "engine_cut_stream"
            return await self._engine_failed(EngineFailed(reason, output_tokens=self._output_tokens()))
        if not client.streaming:
            await client.begin_stream(answer, record.instance)
        await client.write(held)
        return self._tell(EngineCompleted(end.finish_reason or "unknown", self._output_tokens(), end.usage))

    async def _engine_failed(self, failure: EngineFailed) -> Step:
        gateway = self._gateway
        if self._life.retriable(gateway.now()):
            share = gateway.policy.current.retry_budget_share
            failure = replace(failure, may_retry=gateway.retries.take(share, gateway.clock.wall_s()))
        step = self._tell(failure)
        await self._publish_facts()
        return step

    def _output_tokens(self) -> int:
        """An estimate of what the engine has generated so far in this attempt."""
        relay = self._relay
        return relay.events * self._tokens_per_event if relay is not None and relay.has_token else 0
