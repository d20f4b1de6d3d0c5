"""The life of one request as a state machine without I/O.

The driver reports what happens and is told what to do next; the machine alone decides which facts there are
and which outcome the request has. Exactly one `Ended` comes out, whatever goes in, and nothing after it.
Late or repeated answers of deciders are expected (messages are submitted again) and change nothing.
"""

from enum import Enum, auto
from typing import Any

import msgspec

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
    FellBack,
    Finish,
    FirstTokenArrived,
    Happening,
    IngressStopping,
    Instant,
    InternalError,
    Interruption,
    Step,
    TurnedAway,
    Usage,
    Wait,
)
from ingress.policy.retry_budget import RETRY_AFTER_S
from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.contracts.requests import (
    Admitted,
    Ended,
    Event,
    FirstToken,
    Objective,
    Outcome,
    Queued,
    Refused,
    RequestSpec,
    Retried,
    Routed,
    Submitted,
    event_id,
    next_event,
    terminal_event_id,
)
from tokenfleet.contracts.sites import Fared, Happened
from tokenfleet.engine.gpu_time import decode_gpu_s, prefill_gpu_s

MAX_ATTEMPTS = 2
MAX_SUBMISSIONS = 2
"""A request is submitted this many times per attempt before ingress decides alone."""
NO_INSTANCE_RETRY_AFTER_S = 1.0
BUSY = (429, 503)
"""Refusals that say something of how a site is."""
CLIENT_CLOSED_REQUEST = 499
"""Not an HTTP status: what proxies record for a client that went away."""

_WAIT = Wait()


class Phase(Enum):
    DECIDING = auto()
    QUEUED = auto()
    """SLOMax keeps the request and says so again and again."""
    FALLING_BACK = auto()
    AT_ENGINE = auto()
    """The engine has the request and nothing was sent to the client: another attempt is possible."""
    RELAYING = auto()
    OVER = auto()


_UNDECIDED = frozenset({Phase.DECIDING, Phase.QUEUED})


class Lifecycle:
    """One request, from its submission to its end."""

    def __init__(
        self,
        *,
        request_id: str,
        tenant: str,
        site: str,
        request: RequestSpec,
        at: Instant,
        time_scale: float,
        input_exact: bool = False,
    ) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.site = site
        self.pool = request.model
        self.request = request
        self.attempt = 1
        self.phase = Phase.DECIDING
        self.instance: str | None = None
        self.degraded = False
        self.finish: Finish | None = None
        self.queue_wait_s: float | None = None
        """Engine seconds it was held before it was admitted."""
        self.profile: EngineProfile | None = None
        """Of the engine that is called; from it what the answer took of its GPUs is estimated."""
        self.deadline_s: float | None = None
        """When nobody waits for the answer any more, in engine seconds; None: never."""
        self._submitted = at
        self._time_scale = time_scale
        if request.deadline_ns:
            self.deadline_s = at.engine_s + (request.deadline_ns - at.unix_ns) / 1e9 * time_scale
        self._silent_for_s: float | None = None
        """How long a decider may be silent now, in wall seconds; None: as for any decision."""
        self._input_exact = input_exact
        self._submissions = 0
        self._facts: list[Event] = []
        self._admitted = False
        self._request_class: str | None = None
        self._objective: Objective | None = None
        self._predicted_ttft_s: float | None = None
        self._predicted_tpot_s: float | None = None
        self._first_token_s: float | None = None
        self._retried_input_tokens = 0
        self._retried_output_tokens = 0
        self._retried_gpu_s = 0.0

    # -- what the driver calls

    def submitted(self) -> Submitted:
        """The present attempt as a message to the deciders."""
        return Submitted(
            event_id=event_id(self.request_id, self.attempt, "submitted"),
            request_id=self.request_id,
            attempt=self.attempt,
            tenant=self.tenant,
            pool=self.request.model,
            site=self.request.entry_site,
            time_ns=self._submitted.unix_ns,
            request=self.request,
        )

    def begin(self) -> Step:
        """The first step."""
        return self._ask()

    def receive(self, happening: Happening, at: Instant) -> Step:
        """Take in what happened at a moment; the next step. What no longer matters leads to `Wait`."""
        if self.finish is not None:
            return self.finish
        if isinstance(happening, Queued | Admitted | Refused | Routed):
            return self._on_answer(happening, at)
        if isinstance(happening, Interruption):
            return self._on_interruption(happening, at)
        if isinstance(happening, TurnedAway):
            return self._end(
                at,
                "rejected",
                happening.reason,
                happening.status,
                happening.message,
                retry_after_s=happening.retry_after_s,
            )
        if self.phase in _UNDECIDED and isinstance(happening, DecisionTimedOut):
            return self._on_silence()
        if self.phase is Phase.FALLING_BACK and isinstance(happening, FellBack):
            return self._on_fallback(happening, at)
        if self.phase in (Phase.AT_ENGINE, Phase.RELAYING):
            return self._on_engine(happening, at)
        return _WAIT

    def retriable(self, at: Instant) -> bool:
        """Whether another attempt may follow if the engine fails now."""
        return self.phase is Phase.AT_ENGINE and self.attempt < MAX_ATTEMPTS and not self._is_late(at)

    @property
    def ttft_s(self) -> float | None:
        """Engine seconds from its submission to its first token."""
        first_s = self._first_token_s
        return None if first_s is None else first_s - self._submitted.engine_s

    def fared(self, ended: Ended | None = None) -> Fared:
        """What the FleetMind that placed it is told: that its first token came, or how it ended."""
        happened: Happened = "first_token" if ended is None else "ended"
        if ended is not None and ended.outcome in ("failed", "timed_out"):
            happened = "failed"
        elif ended is not None and ended.outcome == "rejected" and ended.status in BUSY:
            happened = "refused"
        return Fared(
            request_id=self.request_id, site=self.site, pool=self.pool, happened=happened, ttft_s=self.ttft_s
        )

    def take_facts(self) -> list[Event]:
        """Facts to publish that have come up since the last call."""
        facts, self._facts = self._facts, []
        return facts

    # -- deciding

    def _ask(self) -> Step:
        self.phase, self._silent_for_s = Phase.DECIDING, None
        self._submissions += 1
        return Ask(self.submitted())

    def _on_answer(self, answer: Answer, at: Instant) -> Step:
        stale = answer.request_id != self.request_id or answer.attempt != self.attempt
        if stale or self.phase not in _UNDECIDED:
            return Wait(self._silent_for_s)
        self.pool, self.site = answer.pool, answer.site
        self._request_class = answer.request_class or self._request_class
        if isinstance(answer, Queued | Admitted) and answer.timeout_s is not None:
            self._set_timeout(answer.timeout_s)
        if isinstance(answer, Queued):
            # Its decider is there: silence from now on is a new silence.
            self.phase, self._submissions = Phase.QUEUED, 1
            self._silent_for_s = answer.valid_s
            return Wait(answer.valid_s)
        self.phase, self._silent_for_s = Phase.DECIDING, None
        if isinstance(answer, Admitted):
            self._admitted = True
            self.queue_wait_s = answer.queue_wait_s
            self._objective = answer.objective
            self._predicted_ttft_s = answer.predicted_ttft_s
            return _WAIT
        if isinstance(answer, Refused):
            self._objective = answer.objective or self._objective
            return self._turn_away(at, answer.reason, answer.status, answer.message, answer.retry_after_s)
        if answer.predicted_ttft_s is not None:
            # TokenPilot counts from its decision, the ledger from the request's arrival.
            self._predicted_ttft_s = answer.predicted_ttft_s + (self.queue_wait_s or 0.0)
        self._predicted_tpot_s = answer.predicted_tpot_s
        return self._call(answer.instance)

    def _set_timeout(self, timeout_s: float) -> None:
        """The class's own timeout replaces the one the request was submitted with."""
        self.deadline_s = self._submitted.engine_s + timeout_s
        deadline_ns = self._submitted.unix_ns + int(timeout_s / self._time_scale * 1e9)
        self.request = msgspec.structs.replace(self.request, deadline_ns=deadline_ns)

    def _is_late(self, at: Instant) -> bool:
        return self.deadline_s is not None and at.engine_s >= self.deadline_s

    def _on_silence(self) -> Step:
        if self._submissions < MAX_SUBMISSIONS:
            return self._ask()
        self.phase = Phase.FALLING_BACK
        return FallBack(self.request.excluded_instances)

    def _on_fallback(self, choice: FellBack, at: Instant) -> Step:
        if choice.instance is None:
            message = f"No instance of {self.request.model} is ready. Try again shortly."
            return self._turn_away(at, "no_ready_instance", 503, message, NO_INSTANCE_RETRY_AFTER_S)
        self.degraded = True
        self.pool, self.site = choice.pool, choice.site
        return self._call(choice.instance)

    def _turn_away(
        self, at: Instant, reason: str, status: int, message: str, retry_after_s: float | None
    ) -> Step:
        # A first attempt that nobody takes was rejected; a later one means that the request failed.
        if self.attempt > 1:
            return self._end(at, "failed", f"retry_{reason}", status, message, retry_after_s=retry_after_s)
        return self._end(at, "rejected", reason, status, message, retry_after_s=retry_after_s)

    # -- at the engine

    def _call(self, instance: str) -> Step:
        self.instance, self.profile = instance, None
        self.phase = Phase.AT_ENGINE
        return CallEngine(instance)

    def _on_engine(self, happening: Happening, at: Instant) -> Step:
        if isinstance(happening, FirstTokenArrived):
            return self._on_first_token(at)
        if isinstance(happening, EngineCompleted):
            return self._end(
                at,
                "completed",
                happening.finish_reason,
                200,
                "",
                usage=happening.usage,
                output_tokens=happening.output_tokens,
            )
        if isinstance(happening, EngineRejected):
            message = f"The engine answered {happening.status}."
            return self._end(at, "rejected", "engine_rejected", happening.status, message)
        if isinstance(happening, EngineFailed):
            return self._on_engine_failed(happening, at)
        return _WAIT

    def _on_first_token(self, at: Instant) -> Step:
        if self.phase is Phase.AT_ENGINE:
            self.phase = Phase.RELAYING
            self._first_token_s = at.engine_s
            ttft_s = at.engine_s - self._submitted.engine_s
            self._note(FirstToken, "first_token", at, instance=self.instance or "", ttft_s=ttft_s)
        return _WAIT

    def _on_engine_failed(self, failure: EngineFailed, at: Instant) -> Step:
        message = f"The engine failed ({failure.reason})."
        if self.phase is Phase.RELAYING or self.attempt >= MAX_ATTEMPTS:
            return self._end(at, "failed", failure.reason, 502, message, output_tokens=failure.output_tokens)
        if self._is_late(at):
            return self._on_interruption(DeadlinePassed(failure.output_tokens), at)
        if not failure.may_retry:
            message += " Too many requests are being tried again already. Try again shortly."
            return self._end(
                at,
                "failed",
                "retry_budget_exhausted",
                503,
                message,
                output_tokens=failure.output_tokens,
                retry_after_s=RETRY_AFTER_S,
            )
        input_tokens = self.request.input_tokens if failure.reached else 0
        self._note(
            Retried,
            "retried",
            at,
            instance=self.instance,
            reason=failure.reason,
            input_tokens=input_tokens,
            output_tokens=failure.output_tokens,
        )
        self._retried_input_tokens += input_tokens
        self._retried_output_tokens += failure.output_tokens
        if self.profile is not None and failure.reached:
            self._retried_gpu_s += prefill_gpu_s(self.profile, input_tokens, 0)
            self._retried_gpu_s += decode_gpu_s(self.profile, failure.output_tokens, input_tokens)
        excluded = (*self.request.excluded_instances, self.instance or "")
        self.request = msgspec.structs.replace(self.request, excluded_instances=excluded)
        self.attempt += 1
        self._submissions = 0
        return self._ask()

    def _note(self, kind: type[Event], name: str, at: Instant, **fields: Any) -> None:
        """A fact of the present attempt, to be published."""
        fact = next_event(
            kind,
            name,
            self.submitted(),
            site=self.site,
            pool=self.pool,
            time_ns=at.unix_ns,
            request_class=self._request_class,
            **fields,
        )
        self._facts.append(fact)

    # -- the end

    def _on_interruption(self, happening: Interruption, at: Instant) -> Step:
        outcome, reason, status, message = _INTERRUPTIONS[type(happening)]
        return self._end(at, outcome, reason, status, message, output_tokens=happening.output_tokens)

    def _end(
        self,
        at: Instant,
        outcome: Outcome,
        reason: str,
        status: int,
        message: str,
        *,
        usage: Usage | None = None,
        output_tokens: int = 0,
        retry_after_s: float | None = None,
    ) -> Step:
        counted = usage or Usage(self.request.input_tokens, output_tokens)
        first_s = self._first_token_s
        prefill_s, decode_s = self._gpu_s(outcome, counted)
        ended = Ended(
            event_id=terminal_event_id(self.request_id),
            request_id=self.request_id,
            attempt=self.attempt,
            tenant=self.tenant,
            pool=self.pool,
            site=self.site,
            time_ns=at.unix_ns,
            request_class=self._request_class,
            outcome=outcome,
            reason=reason,
            status=status,
            model=self.request.model,
            stream=self.request.stream,
            submitted_ns=self._submitted.unix_ns,
            e2e_s=at.engine_s - self._submitted.engine_s,
            admitted=self._admitted,
            degraded=self.degraded,
            instance=self.instance,
            objective=self._objective,
            input_tokens=counted.input_tokens,
            reused_tokens=counted.reused_tokens,
            output_tokens=counted.output_tokens,
            # Of what an engine has begun only the engine knows the output.
            tokens_exact=usage is not None or (self._input_exact and self.instance is None),
            queue_wait_s=self.queue_wait_s,
            ttft_s=self.ttft_s,
            tpot_s=_tpot_s(first_s, at.engine_s, counted.output_tokens),
            predicted_ttft_s=self._predicted_ttft_s,
            predicted_tpot_s=self._predicted_tpot_s,
            retried_input_tokens=self._retried_input_tokens,
            retried_output_tokens=self._retried_output_tokens,
            prefill_gpu_s=prefill_s,
            decode_gpu_s=decode_s,
            retried_gpu_s=self._retried_gpu_s,
            client_request_id=self.request.client_request_id,
            time_scale=self._time_scale,
        )
        self.phase = Phase.OVER
        self.finish = Finish(ended, message, retry_after_s)
        return self.finish

    def _gpu_s(self, outcome: Outcome, counted: Usage) -> tuple[float | None, float | None]:
        """Of the last attempt, for its prompt and for its output; None where no engine worked or it is not known."""
        if self.profile is None or outcome == "rejected":
            return None, None
        reused = min(counted.reused_tokens, counted.input_tokens)
        prefill_s = prefill_gpu_s(self.profile, counted.input_tokens - reused, reused)
        return prefill_s, decode_gpu_s(self.profile, counted.output_tokens, counted.input_tokens)


def _tpot_s(first_token_s: float | None, end_s: float, output_tokens: int) -> float | None:
    # There is no first token to measure from in an answer that was not streamed.
    if first_token_s is None or output_tokens < 2:
        return None
    return (end_s - first_token_s) / (output_tokens - 1)


_INTERRUPTIONS: dict[type[Interruption], tuple[Outcome, str, int, str]] = {
    DeadlinePassed: ("timed_out", "deadline", 504, "The request was not finished in time."),
    ClientGone: ("cancelled", "client_disconnected", CLIENT_CLOSED_REQUEST, "The client went away."),
    IngressStopping: ("failed", "ingress_stopped", 503, "This ingress is stopping. Send the request again."),
    InternalError: ("failed", "internal_error", 500, "Ingress failed; its log says why."),
}
