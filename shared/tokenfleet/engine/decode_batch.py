"""The requests that decode together, at a cost per iteration that does not depend on how many they are.

Every iteration gives each of them one token. So a request's progress is the number of iterations since it
joined; the one in which it finishes and those in which its next token begins a new KV block are known when it
joins, and only their counts are kept.
"""

import heapq

from tokenfleet.engine.kv_cache import Allocation
from tokenfleet.engine.requests import EngineRequest


class EngineSequence:
    """A request inside the engine.

    Args:
        request: as it was added.
        output_tokens: how many it will produce.
        order: its rank among all requests ever added.
    """

    __slots__ = (
        "allocation",
        "computed_tokens",
        "decode_from",
        "finish_at",
        "generated_tokens",
        "order",
        "output_tokens",
        "request",
        "reused_tokens",
        "scheduled_s",
        "target_tokens",
    )

    def __init__(self, request: EngineRequest, output_tokens: int, order: int) -> None:
        self.request = request
        self.output_tokens = output_tokens
        self.order = order
        self.target_tokens = request.prompt_tokens
        """What to compute before it can decode: the prompt, and after a preemption also the output so far."""
        self.computed_tokens = 0
        self.generated_tokens = 0
        """Output tokens so far; while it decodes, as of `decode_from`."""
        self.decode_from: int | None = None
        """The iteration after which it began to decode; None while it does not."""
        self.finish_at = 0
        self.allocation: Allocation | None = None
        self.reused_tokens = 0
        self.scheduled_s: float | None = None


class DecodeBatch:
    """The decoding requests of one engine; `iterations` counts those that have ended."""

    def __init__(self, block_size: int) -> None:
        self.size = 0
        self.context_tokens = 0
        """Of all of them, prompts and output, in the current iteration."""
        self.iterations = 0
        self._block_size = block_size
        self._growing = [0] * block_size
        """How many begin a new block in an iteration, by its number modulo the block size."""
        self._finishes: list[tuple[int, int, EngineSequence]] = []

    def join(self, sequence: EngineSequence) -> None:
        """A request has its first token (again) and decodes from the next iteration on."""
        sequence.decode_from = self.iterations
        sequence.finish_at = self.iterations + sequence.output_tokens - sequence.generated_tokens
        heapq.heappush(self._finishes, (sequence.finish_at, sequence.order, sequence))
        self.size += 1
        self.context_tokens += sequence.target_tokens + 1
        self._growing[self._growth_phase(sequence, self.iterations)] += 1

    def leave(self, sequence: EngineSequence) -> int:
        """A request stops decoding; returns the tokens it produced here, which are now counted in it."""
        assert sequence.decode_from is not None
        produced_tokens = self.iterations - sequence.decode_from
        self.size -= 1
        self.context_tokens -= sequence.target_tokens + 1 + produced_tokens
        self._growing[self._growth_phase(sequence, sequence.decode_from)] -= 1
        sequence.generated_tokens += produced_tokens
        sequence.decode_from = None
        return produced_tokens

    def generated_tokens(self, sequence: EngineSequence) -> int:
        """Output tokens of a sequence so far, whether it decodes or not."""
        if sequence.decode_from is None:
            return sequence.generated_tokens
        return sequence.generated_tokens + self.iterations - sequence.decode_from

    def new_blocks(self) -> int:
        """How many KV blocks the next tokens of all requests need."""
        return self._growing[(self.iterations + 1) % self._block_size]

    def end_iteration(self) -> list[EngineSequence]:
        """Each request has one more token; returns those it was the last of. They have yet to leave."""
        self.iterations += 1
        self.context_tokens += self.size
        finished: list[EngineSequence] = []
        while self.next_finish() == self.iterations:
            finished.append(heapq.heappop(self._finishes)[2])
        return finished

    def next_finish(self) -> int | None:
        """The iteration in which a request finishes next; None if none decodes."""
        finishes = self._finishes
        while finishes:
            finish_at, _, sequence = finishes[0]
            if sequence.decode_from is not None and sequence.finish_at == finish_at:
                return finish_at
            heapq.heappop(finishes)  # It left before.
        return None

    def _growth_phase(self, sequence: EngineSequence, decode_from: int) -> int:
        return (decode_from + 1 - sequence.target_tokens) % self._block_size
