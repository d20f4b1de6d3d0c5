"""Prompts for traces that only tell lengths and block ids.

Equal block ids give equal text, and every text is exactly as many tokens long as the trace says: by
TokenFleet's estimate a token is four UTF-8 bytes (`tokenfleet.blocks`), and all text here is ASCII. Engines
with a real tokenizer will count other numbers of tokens, but share the same prefixes.
"""

import hashlib
from functools import lru_cache

from lab.traces.model import TraceRequest
from tokenfleet.blocks import CHARS_PER_TOKEN

CACHED_BLOCKS = 16_384
"""Texts kept: 32 MiB at 512 tokens a block."""


class PromptWriter:
    """Writes the prompts of one run.

    Runs with different salts share no block, so a second run does not hit the first one's cache.
    """

    def __init__(self, salt: str) -> None:
        self._salted = hashlib.shake_128(salt.encode())
        self._block = lru_cache(maxsize=CACHED_BLOCKS)(self._write_block)

    def prompt(self, request: TraceRequest) -> str:
        """The prompt of a request: `input_tokens` tokens, beginning with the blocks it is to share."""
        text = "".join(self._block(block, request.trace_block_tokens) for block in request.block_ids)
        return text[: request.input_tokens * CHARS_PER_TOKEN]

    def _write_block(self, block_id: int, tokens: int) -> str:
        stream = self._salted.copy()
        stream.update(b"/%d" % block_id)
        return stream.hexdigest(tokens * CHARS_PER_TOKEN // 2)
