"""What a prompt counts for: its tokens and the keyed hashes of its blocks. Its text goes no further."""

import asyncio
from dataclasses import dataclass

import numpy as np

from ingress.validation import ApiRequest, ChatBody, Prompt
from tokenfleet.blocks import HASH_BYTES, BlockHasher, TokenIds, id_tokens, text_tokens
from tokenfleet.prompts import chat_tokens, content_text

MAX_BLOCKS = 8_192
"""Hashes of at most this many leading blocks are published: 64 KiB of a 1 MiB NATS message."""
THREAD_ABOVE_BYTES = 4 * 65_536
"""Prompts above about 64k tokens are hashed in a thread, so that they delay nobody's stream."""


@dataclass(frozen=True, slots=True)
class PromptAccount:
    """Tokens are estimates unless the client sent token ids."""

    input_tokens: int
    blocks: bytes


async def account(request: ApiRequest, hasher: BlockHasher, block_size_tokens: int) -> PromptAccount:
    """Count and hash a request's prompt."""
    if len(request.body) > THREAD_ABOVE_BYTES:
        return await asyncio.to_thread(count_and_hash, request, hasher, block_size_tokens)
    return count_and_hash(request, hasher, block_size_tokens)


def count_and_hash(request: ApiRequest, hasher: BlockHasher, block_size_tokens: int) -> PromptAccount:
    """Tokens of all prompts of the request; blocks of the first, since one instance serves all of them."""
    prompts = prompt_tokens(request)
    leading = prompts[0][: MAX_BLOCKS * block_size_tokens]
    blocks = hasher.chain(leading, block_size_tokens)
    # Engines begin even an empty prompt with a token.
    input_tokens = max(1, sum(len(tokens) for tokens in prompts))
    return PromptAccount(input_tokens, blocks[: MAX_BLOCKS * HASH_BYTES])


def prompt_tokens(request: ApiRequest) -> list[TokenIds]:
    """The pseudo-tokens of each prompt in the request."""
    fields = request.fields
    if isinstance(fields, ChatBody):
        return [chat_tokens((m["role"], content_text(m.get("content"))) for m in fields.messages)]
    return _completion_prompts(fields.prompt)


def _completion_prompts(prompt: Prompt) -> list[TokenIds]:
    if isinstance(prompt, str):
        return [text_tokens(prompt)]
    if isinstance(prompt[0], int):
        return [np.array(prompt, dtype=np.uint32)]
    return [
        text_tokens(item) if isinstance(item, str) else id_tokens(item)
        for item in prompt
        if not isinstance(item, int)
    ]
