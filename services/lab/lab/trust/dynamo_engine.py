"""The mock engine of NVIDIA Dynamo's offline replay, as this project's engine model runs it.

Constants are its defaults (`vllm` backend, polynomial timing, ai-dynamo-runtime 1.6). An iteration that
computes `x` prompt tokens beside decoding requests of `c` context tokens in total takes

    4.209989e-7 x^2 + 1.518344e-2 x + 16.50142  milliseconds if x > 0, plus
    max(1, -25.74 p^2 + 54.01 p + 5.74)          milliseconds if any request decodes, p = min(1, c / capacity).

That the two add up in a mixed iteration, that `c` counts a shared prefix once per request, and that the
iteration which completes a prompt is not counted as a decode step of that request, was read off single
requests and pairs of requests sent through the replay; `docs/lab-trust.md` tells how.
"""

from collections.abc import Iterable

import msgspec

from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.engine.profile import IterationTiming

CAPACITY_TOKENS = 16_384 * 64
BLOCK_TOKENS = 64
WORKERS = 8
BUDGET_TOKENS = 8_192
MAX_SEQUENCES = 256


PREFILL_MS = (4.209989e-7, 1.518344e-2, 16.50142)
DECODE_MS = (-25.74, 54.01, 5.74)


def prefill_ms(new_tokens: int) -> float:
    """Milliseconds for the prompt tokens of one iteration, at least one."""
    square, linear, constant = PREFILL_MS
    return square * new_tokens * new_tokens + linear * new_tokens + constant


def dynamo_timing(capacity_tokens: int = CAPACITY_TOKENS) -> IterationTiming:
    """How long iterations of the mock engine take."""
    square, linear, constant = DECODE_MS

    def seconds(decoding: int, context_tokens: float, chunks: Iterable[tuple[int, int]] = ()) -> float:
        new_tokens = 0
        for tokens, _ in chunks:
            new_tokens += tokens
        milliseconds = prefill_ms(new_tokens) if new_tokens else 0.0
        if decoding:
            share = context_tokens / capacity_tokens
            if share > 1.0:
                share = 1.0
            # Never below `constant`, so its lower bound of 1 ms never holds.
            milliseconds += (square * share + linear) * share + constant
        return milliseconds / 1000

    return seconds


DYNAMO_MOCK = EngineProfile(
    name="dynamo-mock",
    # The least-squares line through the decode polynomial over p in [0, 1]: 10.03 + 28.27 p milliseconds.
    base_s=10.03e-3,
    decode_s_per_request=0.0,
    decode_s_per_context_token=28.27e-3 / CAPACITY_TOKENS,
    # A full iteration's prefill, spread over its tokens.
    prefill_s_per_token=prefill_ms(BUDGET_TOKENS) / BUDGET_TOKENS / 1000,
    attention_s_per_token_pair=0.0,
    kv_capacity_tokens=CAPACITY_TOKENS,
    iteration_budget_tokens=BUDGET_TOKENS,
    max_running_requests=MAX_SEQUENCES,
    max_context_tokens=CAPACITY_TOKENS,
)
"""The same engine in this project's linear form: limits exact, times the nearest straight lines.

Only routers that predict read its times; the engine itself runs by `dynamo_timing`.
"""


class ReplayEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The mock engine's settings that comparisons vary."""

    block_tokens: int = BLOCK_TOKENS
    capacity_tokens: int = CAPACITY_TOKENS

    @property
    def profile(self) -> EngineProfile:
        return msgspec.structs.replace(
            DYNAMO_MOCK, kv_capacity_tokens=self.capacity_tokens, max_context_tokens=self.capacity_tokens
        )

    def arguments(self) -> dict[str, object]:
        """The replay's own names for them; all else stays at its defaults."""
        return {
            "block_size": self.block_tokens,
            "num_gpu_blocks": self.capacity_tokens // self.block_tokens,
        }
