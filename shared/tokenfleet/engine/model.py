"""A continuous-batching engine in virtual time.

Iterations follow each other without a pause while there is work. In each, every decoding request produces one
token, and what is left of the token budget computes prompt chunks, first come, first served. An iteration in
which a prompt is completed yields that request's first token. A request waits until its first chunk is
scheduled: there must be budget left, a free sequence, and KV blocks for its whole prompt. When decoding
requests need more blocks than there are, the latest arrived loses its blocks, waits at the head of the queue,
and later computes its prompt and output so far again, less what is still cached.

Only prompt blocks are cached, not output blocks.
"""

from collections import deque
from math import inf

from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.engine.decode_batch import DecodeBatch, EngineSequence
from tokenfleet.engine.kv_cache import KvCache
from tokenfleet.engine.profile import IterationTiming, decode_step_s, iteration_s
from tokenfleet.engine.requests import (
    ContextTooLongError,
    EngineCounters,
    EngineEvent,
    EngineRequest,
    Finished,
    FirstToken,
    NextEvent,
)


class EngineModel:
    """One engine: requests in, tokens out, at exact virtual times. Deterministic.

    Times given to `add`, `cancel` and `advance` must not decrease.

    Args:
        profile: timing and capacity.
        block_size: tokens per KV block.
        record_kv_changes: keep what the cache stored and removed until `kv.take_changes()`.
        timing: how long iterations take, where not as the profile says.
    """

    def __init__(
        self,
        profile: EngineProfile,
        block_size: int,
        *,
        record_kv_changes: bool = False,
        timing: IterationTiming | None = None,
    ) -> None:
        if profile.max_running_requests > profile.iteration_budget_tokens:
            raise ValueError(
                f"Profile {profile.name}: {profile.max_running_requests} requests cannot decode within an "
                f"iteration of {profile.iteration_budget_tokens} tokens; raise the budget or lower the requests"
            )
        self.profile = profile
        self.block_size = block_size
        self.kv = KvCache(profile.kv_capacity_tokens // block_size, record_changes=record_kv_changes)
        self.max_context_tokens = min(profile.max_context_tokens, self.kv.capacity_blocks * block_size)
        self.counters = EngineCounters()
        self._timing = timing
        self._now_s = -inf
        self._end_s = inf
        """When the current iteration ends; infinite while idle."""
        self._added = 0
        self._sequences: dict[str, EngineSequence] = {}
        self._waiting: deque[EngineSequence] = deque()
        self._running: list[EngineSequence] = []
        self._prefilling: list[EngineSequence] = []
        self._decodes = DecodeBatch(block_size)
        self._chunks: list[tuple[EngineSequence, int]] = []
        """What the current iteration computes of whose prompt."""
        self._decodes_grown = False
        """Whether the decodes hold the blocks for the tokens of the current iteration."""
        self._head_blocked = False
        """The first waiting request does not fit until another leaves."""
        self._events: list[EngineEvent] = []

    @property
    def iterations(self) -> int:
        """Iterations that have ended."""
        return self._decodes.iterations

    @property
    def running(self) -> int:
        """Requests whose first chunk was scheduled."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests not scheduled yet, or preempted."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks held by running requests."""
        return self.kv.used_blocks / self.kv.capacity_blocks

    def produced_tokens(self, request_id: str) -> int:
        """Output tokens of an unfinished request so far. Raises KeyError for one that is not here."""
        return self._decodes.generated_tokens(self._sequences[request_id])

    def add(self, request: EngineRequest, now_s: float) -> None:
        """Queue a request. It joins the first iteration that starts from now on.

        Raises:
            ContextTooLongError: the prompt can never run here.
            ValueError: the id is in use, or there is no prompt or no output.
        """
        room_tokens = self.max_context_tokens - request.prompt_tokens
        if room_tokens < 1:
            raise ContextTooLongError(
                f"The prompt has {request.prompt_tokens} tokens, but prompt and output together may have "
                f"{self.max_context_tokens}; shorten the prompt"
            )
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"Request {request.request_id} needs a prompt and at least one output token")
        if request.request_id in self._sequences:
            raise ValueError(f"Request {request.request_id} is running already")
        self._run_until(now_s)
        sequence = EngineSequence(request, min(request.output_tokens, room_tokens), self._added)
        self._added += 1
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)
        if self._end_s == inf:
            self._start_iteration(now_s)

    def cancel(self, request_id: str, now_s: float) -> int | None:
        """Drop a request and free its blocks at once; the current iteration still takes its time.

        Returns the output tokens it produced, or None if it is not here (any more).
        """
        self._run_until(now_s)
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return None
        if sequence.allocation is None:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)
        self._head_blocked = False
        self.counters.cancelled += 1
        return sequence.generated_tokens

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Run all iterations that end by now; returns what happened since the last call, in order of time."""
        self._run_until(now_s)
        events = self._events
        if events:
            self._events = []
        return events

    def next_event(self, max_iterations: int = 1) -> NextEvent | None:
        """When to advance next if nothing is added or cancelled; None while idle.

        That is the end of the current iteration; or, while no prompt is being computed and nobody can join,
        of the iteration in which the first request finishes, but at most `max_iterations` on.
        """
        if self._end_s == inf:
            return None
        next_finish = self._decodes.next_finish()
        if self._prefilling or next_finish is None or (self._waiting and not self._head_blocked):
            notable = next_finish == self.iterations + 1 or any(map(_is_notable, self._chunks))
            return NextEvent(self._end_s, notable)
        steps = min(max_iterations, next_finish - self.iterations)
        decoding = self._decodes.size
        if self.kv.available_blocks < decoding * (steps // self.block_size + 1):
            steps = 1  # Somebody may be preempted on the way.
        further = steps - 1
        if further and self._timing is not None:
            # Contexts only grow, so this is not late.
            least_s = further * self._timing(decoding, self._decodes.context_tokens, ())
            return NextEvent(self._end_s + least_s, notable=False)
        mean_context_tokens = self._decodes.context_tokens + decoding * (further + 1) / 2
        further_s = further * decode_step_s(self.profile, decoding, mean_context_tokens)
        return NextEvent(self._end_s + further_s, next_finish == self.iterations + steps)

    def _run_until(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"Time went back from {self._now_s} to {now_s} s")
        self._now_s = now_s
        while self._end_s <= now_s:
            if not self._prefilling and (self._head_blocked or not self._waiting):
                self._decode_on(now_s)
                if self._end_s > now_s:
                    return
            ended_s = self._end_s
            self._complete_iteration(ended_s)
            self._start_iteration(ended_s)

    def _decode_on(self, now_s: float) -> None:
        """The iterations that end by now in which nothing happens but one more token each.

        They are most of them, and this is the same as completing and starting each, only faster.
        """
        decodes, profile, timing = self._decodes, self.profile, self._timing
        next_finish = decodes.next_finish()
        if next_finish is None:
            return
        size = decodes.size
        fixed_s = profile.base_s + profile.decode_s_per_request * size
        s_per_context_token = profile.decode_s_per_context_token
        first, end_s = decodes.iterations, self._end_s
        while end_s <= now_s and decodes.iterations + 1 < next_finish:
            decodes.iterations += 1
            decodes.context_tokens += size
            blocks = decodes.new_blocks()
            if blocks and not self.kv.extend(blocks):
                self._decodes_grown = False
                self._start_iteration(end_s)  # Which preempts.
                end_s = self._end_s
                break
            if timing is None:
                end_s += fixed_s + s_per_context_token * decodes.context_tokens
            else:
                end_s += timing(size, decodes.context_tokens, ())
        self._end_s = end_s
        self.counters.generation_tokens += (decodes.iterations - first) * size

    def _start_iteration(self, start_s: float) -> None:
        """Schedule the next iteration, or become idle."""
        self._grow_decodes()
        budget_tokens = self.profile.iteration_budget_tokens - self._decodes.size
        for sequence in self._prefilling:
            if budget_tokens == 0:
                break
            budget_tokens -= self._plan_chunk(sequence, budget_tokens)
        self._admit(budget_tokens, start_s)
        if not self._running:
            self._end_s = inf
            return
        decodes = self._decodes
        chunks = [(tokens, sequence.computed_tokens) for sequence, tokens in self._chunks]
        if self._timing is None:
            self._end_s = start_s + iteration_s(self.profile, decodes.size, decodes.context_tokens, chunks)
        else:
            self._end_s = start_s + self._timing(decodes.size, decodes.context_tokens, chunks)

    def _grow_decodes(self) -> None:
        """Take the blocks that the next tokens need, from the latest arrived if there are not enough."""
        while (blocks := self._decodes.new_blocks()) and not self.kv.extend(blocks):
            self._preempt(self._running[-1])
        self._decodes_grown = True

    def _preempt(self, sequence: EngineSequence) -> None:
        self._leave(sequence)
        sequence.target_tokens = sequence.request.prompt_tokens + sequence.generated_tokens
        sequence.computed_tokens = 0
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _plan_chunk(self, sequence: EngineSequence, budget_tokens: int) -> int:
        tokens = min(sequence.target_tokens - sequence.computed_tokens, budget_tokens)
        self._chunks.append((sequence, tokens))
        return tokens

    def _admit(self, budget_tokens: int, start_s: float) -> None:
        """Move waiting requests into the batch, in order, until one does not fit."""
        self._head_blocked = False
        while self._waiting and budget_tokens > 0:
            sequence = self._waiting[0]
            if len(self._running) == self.profile.max_running_requests or not self._allocate(sequence):
                self._head_blocked = True
                return
            self._waiting.popleft()
            if sequence.scheduled_s is None:
                sequence.scheduled_s = start_s
                sequence.reused_tokens = sequence.computed_tokens
                self.counters.prefix_query_tokens += sequence.request.prompt_tokens
                self.counters.prefix_hit_tokens += sequence.computed_tokens
            self._running.append(sequence)
            self._prefilling.append(sequence)
            budget_tokens -= self._plan_chunk(sequence, budget_tokens)

    def _allocate(self, sequence: EngineSequence) -> bool:
        request = sequence.request
        # The last token is always computed, cached or not: its output is the next token.
        reusable_tokens = min(request.prompt_tokens, sequence.target_tokens - 1)
        allocation = self.kv.allocate(
            request.request_id,
            request.block_hashes,
            min(reusable_tokens // self.block_size, len(request.block_hashes)),
            self._blocks(sequence.target_tokens),
        )
        if allocation is None:
            return False
        sequence.allocation = allocation
        sequence.computed_tokens = allocation.cached_blocks * self.block_size
        return True

    def _complete_iteration(self, end_s: float) -> None:
        self.counters.generation_tokens += self._decodes.size
        self._decodes_grown = False
        for sequence in self._decodes.end_iteration():
            self._finish(sequence, end_s)
        if self._chunks:
            chunks, self._chunks = self._chunks, []
            for sequence, tokens in chunks:
                self._complete_chunk(sequence, tokens, end_s)

    def _complete_chunk(self, sequence: EngineSequence, tokens: int, end_s: float) -> None:
        request, allocation = sequence.request, sequence.allocation
        assert allocation is not None
        sequence.computed_tokens += tokens
        prompt_blocks = min(sequence.computed_tokens, request.prompt_tokens) // self.block_size
        self.kv.commit(allocation, request.block_hashes, min(prompt_blocks, len(request.block_hashes)))
        if sequence.computed_tokens < sequence.target_tokens:
            return
        self._prefilling.remove(sequence)
        if sequence.generated_tokens == 0:
            self._report_first_token(sequence, end_s)
        sequence.generated_tokens += 1
        self.counters.generation_tokens += 1
        if sequence.generated_tokens == sequence.output_tokens:
            self._finish(sequence, end_s)
        else:
            self._decodes.join(sequence)

    def _report_first_token(self, sequence: EngineSequence, end_s: float) -> None:
        assert sequence.scheduled_s is not None
        self.counters.prompt_tokens += sequence.request.prompt_tokens
        self._events.append(
            FirstToken(
                request_id=sequence.request.request_id,
                time_s=end_s,
                scheduled_s=sequence.scheduled_s,
                reused_tokens=sequence.reused_tokens,
            )
        )

    def _finish(self, sequence: EngineSequence, end_s: float) -> None:
        self._leave(sequence)
        request_id = sequence.request.request_id
        del self._sequences[request_id]
        self._events.append(
            Finished(request_id=request_id, time_s=end_s, output_tokens=sequence.generated_tokens)
        )

    def _leave(self, sequence: EngineSequence) -> None:
        """Take a sequence out of the batch and free its blocks."""
        allocation = sequence.allocation
        assert allocation is not None
        if sequence.decode_from is not None:
            held_tokens = sequence.target_tokens + self._decodes.leave(sequence)
            if self._decodes_grown:
                held_tokens += 1
            allocation.private_blocks = self._blocks(held_tokens) - allocation.cached_blocks
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not sequence]
        self._running.remove(sequence)
        self.kv.free(allocation)
        sequence.allocation = None

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


def _is_notable(chunk: tuple[EngineSequence, int]) -> bool:
    """Whether a chunk yields a request's first token or, after a preemption, its last."""
    sequence, tokens = chunk
    return sequence.computed_tokens + tokens == sequence.target_tokens and (
        sequence.generated_tokens == 0 or sequence.generated_tokens + 1 == sequence.output_tokens
    )
