"""A shadow of one engine: what it must be doing, from what was routed to it and what came back. Pure.

Engines serve first come, first served, so a first token says that every prefill ahead of it is done, and the
iterations that a decoding request has been through are the tokens it has produced. Of an answer that is not streamed no first
token is told: its prefill is taken to be done when its time is over.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenfleet.contracts.fleet import EngineProfile, InstanceState
from tokenfleet.engine.profile import LLAMA70B_TP4_H100
from tokenfleet.load.table import InstanceColumns

HEAD_DONE_AT_MOST = 0.95
"""Of a prefill, while its first token is not there, however long it takes."""
FULL_KV = 0.7
"""Below this use of KV nothing waits for KV."""
SHARING_WEIGHT = 0.2
"""Of one reading, in the running mean of how much KV a token of context takes."""
REMEMBERED_ENDS = 64


class Observation(NamedTuple):
    """How long a piece of an engine's work took, beside what its profile says of the two parts of it."""

    instance: str
    kind: str
    """`prefill`: from when a prompt could begin to its first token. `decode`: from there to the end."""
    measured_s: float
    prefill_s: float
    step_s: float


@dataclass(slots=True)
class InFlight:
    """One request at one instance."""

    request_id: str
    attempt: int
    instance: str
    input_tokens: int
    reused_tokens: int
    compute_s: float
    """Of its prefill."""
    routed_s: float
    row: int = 0
    compute_through_s: float = 0.0
    tpot_objective_s: float | None = None
    length_row: int = 0
    max_output_tokens: int = 0
    expected: bool = False
    """Not known to be here yet."""
    streamed: bool = True
    """Its first token will be told."""
    first_token_s: float | None = None
    first_iteration: float = 0.0
    first_steps_s: float = 0.0
    first_compute_s: float = 0.0

    @property
    def uncached_tokens(self) -> int:
        return self.input_tokens - self.reused_tokens


@dataclass(slots=True)
class Shadow:
    """One engine. Every method takes the time at which it happens, in engine seconds."""

    instance: str
    profile: EngineProfile = LLAMA70B_TP4_H100
    prefill_factor: float = 1.0
    step_factor: float = 1.0
    time_s: float = 0.0
    iterations: float = 0.0
    steps_s: float = 0.0
    """What the profile says that all iterations so far cost besides their prefill."""
    requests: list[InFlight] = field(default_factory=list[InFlight])
    """By row of the table."""
    pending: dict[str, InFlight] = field(default_factory=dict[str, InFlight])
    """Oldest first."""
    decoding: int = 0
    context_tokens: float = 0.0
    pending_tokens: int = 0
    pending_context_tokens: int = 0
    pending_compute_s: float = 0.0
    enqueued_compute_s: float = 0.0
    head_start_s: float = 0.0
    head_assumed: bool = False
    """Of `head_start_s`: the prefill before is only taken to be done."""
    blocked: bool = False
    unknown_decoding: int = 0
    unknown_waiting: int = 0
    heard_s: float = 0.0
    kv_per_context: float = 1.0
    ended_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED_ENDS))
    """When requests left lately: a reading may be older and still count them."""

    def step_s(self) -> float:
        """What the profile says an iteration costs besides prefill."""
        profile = self.profile
        return (
            profile.base_s
            + profile.decode_s_per_request * self.decoding
            + profile.decode_s_per_context_token * self.context_tokens
        )

    def compute_s(self, uncached_tokens: int, context_tokens: int) -> float:
        """Prefill arithmetic as the profile says."""
        profile = self.profile
        return uncached_tokens * (
            profile.prefill_s_per_token
            + profile.attention_s_per_token_pair * (context_tokens + uncached_tokens / 2)
        )

    def advance(self, now_s: float) -> None:
        """Let the engine run on to `now_s`."""
        elapsed_s = now_s - self.time_s
        if elapsed_s <= 0:
            return
        self.time_s = now_s
        passed = elapsed_s * self.iterations_per_s()
        self.iterations += passed
        self.steps_s += passed * self.step_s()
        self.context_tokens += passed * self.decoding

    def iterations_per_s(self) -> float:
        """How fast it iterates now: slower while it prefills."""
        if not self.pending and not self.decoding:
            return 0.0
        iteration_s = self.step_factor * self.step_s()
        if self.pending and not self.blocked:
            iterations = max(1.0, self.pending_tokens / self._room_tokens())
            iteration_s += self.prefill_factor * self.pending_compute_s / iterations
        return 1.0 / iteration_s

    def _room_tokens(self) -> int:
        return max(1, self.profile.iteration_budget_tokens - self.decoding)

    def _head(self) -> InFlight | None:
        return next(iter(self.pending.values()), None)

    def computed_s(self, now_s: float) -> float:
        """Prefill arithmetic done since this view began, the oldest pending prompt's so far included."""
        done_s = self.enqueued_compute_s - self.pending_compute_s
        head = self._head()
        if head is None or self.blocked:
            return done_s
        share = max(0.0, now_s - self.head_start_s) / max(self._prefill_s(head), 1e-9)
        return done_s + min(share, HEAD_DONE_AT_MOST) * head.compute_s

    def _prefill_s(self, request: InFlight) -> float:
        """How long its prefill takes here, alone."""
        iterations = max(1.0, request.uncached_tokens / self._room_tokens())
        return self.prefill_factor * request.compute_s + self.step_factor * self.step_s() * iterations

    def assume_first_tokens(self, now_s: float, before: InFlight | None = None) -> list[InFlight]:
        """Requests whose first token nobody will tell, and which must decode by now.

        Args:
            now_s: engine seconds.
            before: its first token is there: so are those of all that were ahead of it.
        """
        decoding: list[InFlight] = []
        while (head := self._head()) is not None and not head.streamed and head is not before:
            done_s = max(self.head_start_s + self._prefill_s(head), self.time_s)
            if before is None and (done_s > now_s or self.blocked):
                break
            self._begin_decoding(head, min(done_s, now_s))
            self.head_assumed = True
            decoding.append(head)
        return decoding

    def enqueue(self, request: InFlight, now_s: float) -> None:
        """A request was sent there."""
        self.advance(now_s)
        if not self.pending:
            self.head_start_s = now_s
            self.blocked = False
            self.head_assumed = self.head_assumed and bool(self.requests)
        self.pending[request.request_id] = request
        self.pending_tokens += request.uncached_tokens
        self.pending_context_tokens += request.input_tokens
        self.pending_compute_s += request.compute_s
        self.enqueued_compute_s += request.compute_s
        request.compute_through_s = self.enqueued_compute_s
        request.row = len(self.requests)
        self.requests.append(request)

    def first_token(self, request: InFlight, now_s: float) -> Observation | None:
        """Its prefill is done. How long that took is not known where it began while another was only taken to be done."""
        started_s = max(self.head_start_s, request.routed_s)
        assumed, self.head_assumed = self.head_assumed, False
        self.advance(now_s)
        iterations = max(1.0, request.uncached_tokens / self._room_tokens())
        steps_s = iterations * self.step_s()
        self._begin_decoding(request, now_s)
        if assumed:
            return None
        return Observation(self.instance, "prefill", now_s - started_s, request.compute_s, steps_s)

    def _begin_decoding(self, request: InFlight, now_s: float) -> None:
        self.advance(now_s)
        self._leave_pending(request)
        request.first_token_s = now_s
        request.first_iteration = self.iterations
        request.first_steps_s = self.steps_s
        self.decoding += 1
        self.context_tokens += request.input_tokens
        self.head_start_s = now_s
        self.blocked = False
        request.first_compute_s = self.computed_s(now_s)

    def _leave_pending(self, request: InFlight) -> None:
        del self.pending[request.request_id]
        self.pending_tokens -= request.uncached_tokens
        self.pending_context_tokens -= request.input_tokens
        self.pending_compute_s = max(0.0, self.pending_compute_s - request.compute_s)
        if not self.pending:
            self.pending_compute_s = 0.0

    def leave(self, request: InFlight, now_s: float, output_tokens: int | None) -> Observation | None:
        """It is there no longer. `output_tokens`: of a complete answer, from which there is something to learn."""
        self.advance(now_s)
        if request.first_token_s is None:
            was_head = self._head() is request
            self._leave_pending(request)
            self.enqueued_compute_s -= request.compute_s
            for other in self.requests:
                if other.compute_through_s > request.compute_through_s:
                    other.compute_through_s -= request.compute_s
            if was_head:
                self.head_start_s = now_s
            return None
        produced = self.iterations - request.first_iteration
        self.decoding -= 1
        self.ended_s.append(now_s)
        self.context_tokens = max(0.0, self.context_tokens - request.input_tokens - produced)
        if not self.decoding:
            self.context_tokens = 0.0
        if output_tokens is None or output_tokens < 2 or produced <= 0:
            return None
        mean_step_s = (self.steps_s - request.first_steps_s) / produced
        return Observation(
            self.instance,
            "decode",
            now_s - request.first_token_s,
            max(0.0, self.computed_s(now_s) - request.first_compute_s),
            mean_step_s * (output_tokens - 1),
        )

    def read(self, state: InstanceState, taken_s: float, now_s: float) -> None:
        """Telemetry: what it knows that this shadow was not told, and whether the queue's head is stuck."""
        self.advance(now_s)
        self.heard_s = now_s
        waiting, running = state.waiting, state.running
        if waiting is None or running is None:
            self.unknown_waiting = self.unknown_decoding = 0
            return
        pending_then = self._pending_at(taken_s) if waiting or self.pending else 0
        prefilling = max(0, pending_then - waiting)
        self.unknown_waiting = max(0, waiting - pending_then)
        self.unknown_decoding = self._unknown_decoding(running - prefilling, taken_s)
        if state.kv_usage is None:
            return
        full = state.kv_usage > FULL_KV or running >= self.profile.max_running_requests
        self.blocked = full and waiting >= pending_then > 0 and bool(self.pending)
        if self.blocked:
            self.head_start_s = now_s
        self._learn_sharing(state.kv_usage, prefilling)

    def _unknown_decoding(self, decoding: int, taken_s: float) -> int:
        unknown = decoding - len(self.requests) + len(self.pending)
        if unknown > 0:
            # An older reading may still count those that ended since.
            unknown -= sum(ended_s > taken_s for ended_s in self.ended_s)
        return max(0, unknown)

    def _pending_at(self, taken_s: float) -> int:
        return sum(
            request.routed_s <= taken_s and (request.first_token_s is None or request.first_token_s > taken_s)
            for request in self.requests
        )

    def _learn_sharing(self, kv_usage: float, prefilling: int) -> None:
        expected = self.context_tokens
        for request in list(self.pending.values())[:prefilling]:
            expected += request.input_tokens
        if expected < 0.05 * self.profile.kv_capacity_tokens or self.unknown_decoding:
            return
        ratio = min(max(kv_usage * self.profile.kv_capacity_tokens / expected, 0.1), 1.5)
        self.kv_per_context += SHARING_WEIGHT * (ratio - self.kv_per_context)

    def columns(self) -> InstanceColumns[float]:
        """All that predictions need."""
        profile, head = self.profile, self._head()
        return InstanceColumns(
            self.time_s,
            self.iterations_per_s(),
            self.iterations,
            self.decoding,
            self.context_tokens,
            len(self.pending),
            self.pending_tokens,
            self.pending_context_tokens,
            self.pending_compute_s,
            self.enqueued_compute_s,
            self.head_start_s,
            head.uncached_tokens if head else 0.0,
            head.compute_s if head else 0.0,
            float(self.blocked),
            self.unknown_decoding,
            self.unknown_waiting,
            self.heard_s,
            self.kv_per_context,
            self.prefill_factor,
            self.step_factor,
            profile.base_s,
            profile.decode_s_per_request,
            profile.decode_s_per_context_token,
            profile.prefill_s_per_token,
            profile.attention_s_per_token_pair,
            profile.restore_s_per_token,
            profile.kv_capacity_tokens,
            profile.iteration_budget_tokens,
        )
