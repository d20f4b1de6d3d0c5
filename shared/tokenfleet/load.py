"""What every instance is busy with: telemetry corrected by what was routed since. Pure.

Engines serve first come, first served, so the requests routed to an instance form a queue whose head is the
oldest without a first token: a first token says that everything ahead of it is done. Telemetry adds what
this view was not told (other writers, a restart). Times are monotonic engine seconds.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tokenfleet.contracts.fleet import EngineProfile, InstanceState
from tokenfleet.engine.profile import decode_step_s, prefill_s

UNKNOWN_PREFILL_TOKENS = 4_096
"""What a waiting request nobody told us about is taken to need, until more is known."""
EXPECTED_OUTPUT_TOKENS = 350
"""Mean answer of the conversation trace (shared/traces); learned per tenant in a later version."""
KV_FULL = 0.98
REMEMBERED_ENDS = 10_000
"""Ended requests remembered, so that a late `routed` does not bring one back to life."""


@dataclass(slots=True)
class InFlight:
    """One request at one instance."""

    request_id: str
    attempt: int
    instance: str
    uncached_tokens: int
    reused_tokens: int
    routed_s: float
    first_token_s: float | None = None

    @property
    def context_tokens(self) -> int:
        return self.uncached_tokens + self.reused_tokens


@dataclass(slots=True)
class InstanceLoad:
    """One instance's queue as this view knows it."""

    pending: dict[str, InFlight] = field(default_factory=dict[str, InFlight])
    """Routed and without a first token, oldest first."""
    decoding: dict[str, InFlight] = field(default_factory=dict[str, InFlight])
    last_first_token_s: float = 0.0
    decode_context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a request would meet at an instance, in engine seconds."""

    ttft_s: float
    tpot_s: float
    backlog_s: float
    own_prefill_s: float
    kv_wait_s: float


class LoadView:
    """Applies what happens to requests; predicts from it. Every change is idempotent."""

    def __init__(self) -> None:
        self._instances: dict[str, InstanceLoad] = {}
        self._requests: dict[str, InFlight] = {}
        self._ended_attempt: OrderedDict[str, int] = OrderedDict()

    def instance(self, instance: str) -> InstanceLoad:
        return self._instances.setdefault(instance, InstanceLoad())

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def routed(
        self,
        request_id: str,
        attempt: int,
        instance: str,
        input_tokens: int,
        reused_tokens: int,
        now_s: float,
    ) -> None:
        """A request was sent to an instance. A later attempt replaces an earlier one."""
        known = self._requests.get(request_id)
        if known is not None:
            if known.attempt >= attempt:
                return
            self._leave(known)
        if self._ended_attempt.get(request_id, 0) >= attempt:
            return
        reused = min(reused_tokens, max(0, input_tokens - 1))
        request = InFlight(request_id, attempt, instance, input_tokens - reused, reused, now_s)
        self._requests[request_id] = request
        self.instance(instance).pending[request_id] = request

    def first_token(self, request_id: str, now_s: float) -> None:
        """Its prefill is done, and so is every prefill ahead of it."""
        request = self._requests.get(request_id)
        if request is None or request.first_token_s is not None:
            return
        load = self.instance(request.instance)
        del load.pending[request_id]
        request.first_token_s = now_s
        load.decoding[request_id] = request
        load.decode_context_tokens += request.context_tokens
        load.last_first_token_s = now_s

    def ended(self, request_id: str, attempt: int) -> None:
        """An attempt left its instance, in whatever way."""
        self._ended_attempt[request_id] = max(attempt, self._ended_attempt.get(request_id, 0))
        if len(self._ended_attempt) > REMEMBERED_ENDS:
            self._ended_attempt.popitem(last=False)
        request = self._requests.get(request_id)
        if request is not None and request.attempt <= attempt:
            self._leave(request)

    def _leave(self, request: InFlight) -> None:
        del self._requests[request.request_id]
        load = self.instance(request.instance)
        load.pending.pop(request.request_id, None)
        if load.decoding.pop(request.request_id, None) is not None:
            load.decode_context_tokens -= request.context_tokens

    def drop_instance(self, instance: str) -> None:
        """The instance restarted or left: nothing is running there any more."""
        load = self._instances.pop(instance, None)
        for request_id in [*load.pending, *load.decoding] if load else ():
            self._requests.pop(request_id, None)

    def expire(self, before_s: float) -> int:
        """Forget requests routed before a time: their end was never reported. Returns how many."""
        old = [request for request in self._requests.values() if request.routed_s < before_s]
        for request in old:
            self._leave(request)
        return len(old)

    def outstanding(self, instance: str) -> int:
        """Requests this view knows at an instance."""
        load = self._instances.get(instance)
        return len(load.pending) + len(load.decoding) if load else 0

    def predict(
        self,
        instance: str,
        profile: EngineProfile,
        state: InstanceState | None,
        input_tokens: int,
        reused_tokens: int,
        now_s: float,
    ) -> Prediction:
        """What a request of `input_tokens`, of which `reused_tokens` are cached there, would meet."""
        load = self.instance(instance)
        decoding, context = self._decode_load(load, state)
        backlog = self._backlog_s(load, profile, state, decoding, context, now_s)
        reused = min(reused_tokens, max(0, input_tokens - 1))
        own = prefill_s(profile, input_tokens - reused, reused, decoding, context)
        kv_wait = _kv_wait_s(profile, state, input_tokens - reused, decoding, context)
        running_iteration = decode_step_s(profile, decoding, context) / 2 if decoding else 0.0
        tpot = decode_step_s(profile, decoding + 1, context + input_tokens)
        wait = max(backlog, kv_wait)
        return Prediction(wait + own + running_iteration, tpot, backlog, own, kv_wait)

    def _decode_load(self, load: InstanceLoad, state: InstanceState | None) -> tuple[int, int]:
        # Telemetry may know of running requests that this view was never told about.
        decoding, context = len(load.decoding), load.decode_context_tokens
        running = state.running if state is not None and state.running is not None else 0
        unknown = max(0, running - decoding - len(load.pending))
        return decoding + unknown, context + unknown * UNKNOWN_PREFILL_TOKENS

    def _backlog_s(
        self,
        load: InstanceLoad,
        profile: EngineProfile,
        state: InstanceState | None,
        decoding: int,
        context: int,
        now_s: float,
    ) -> float:
        times = _prefill_times(profile, load.pending.values(), decoding, context)
        waiting = state.waiting if state is not None and state.waiting is not None else 0
        unknown = max(0, waiting - len(load.pending))
        backlog = sum(times) + unknown * prefill_s(profile, UNKNOWN_PREFILL_TOKENS, 0, decoding, context)
        if times:
            head = next(iter(load.pending.values()))
            since = now_s - max(load.last_first_token_s, head.routed_s)
            backlog -= min(max(since, 0.0), 0.95 * times[0])
        return backlog


def _prefill_times(
    profile: EngineProfile, requests: Iterable[InFlight], decoding: int, context: int
) -> list[float]:
    return [
        prefill_s(profile, request.uncached_tokens, request.reused_tokens, decoding, context)
        for request in requests
    ]


def _kv_wait_s(
    profile: EngineProfile, state: InstanceState | None, needed_tokens: int, decoding: int, context: int
) -> float:
    """Until running requests have freed enough KV: they hold `context` and leave evenly over an answer."""
    if state is None or state.kv_usage is None or not context:
        return 0.0
    free_tokens = (KV_FULL - state.kv_usage) * profile.kv_capacity_tokens
    shortage = needed_tokens - max(0.0, free_tokens)
    if shortage <= 0:
        return 0.0
    answer_s = EXPECTED_OUTPUT_TOKENS * decode_step_s(profile, decoding, context)
    return min(shortage / context, 1.0) * answer_s
