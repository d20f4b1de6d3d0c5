"""What a prompt counts for: its tokens and the keyed hashes of its blocks. Its text goes no further.

Best are the ids that the engine will compute itself: from the model's tokenizer here, else from an engine's
`/tokenize`. Without either, four bytes of text are a token: enough to tell equal prefixes, and what the emulated
engine does too. A prompt whose blocks an engine keeps apart, or that is not text alone, has no blocks: rather no
known prefix than a wrong one.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import structlog

from ingress.tokenization.chat import Chat, UnknownPromptError, chat_of, check_text, is_salted
from ingress.tokenization.engine import EngineTokenizers
from ingress.tokenization.local import LocalTokenizer
from ingress.validation import ApiRequest, ChatBody, CompletionBody, Prompt
from tokenfleet.blocks import HASH_BYTES, BlockHasher, TokenIds, id_tokens, text_tokens
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.prompts import chat_tokens, content_text

log = structlog.get_logger(__name__)

Method = Literal["tokenizer", "engine", "characters"]

MAX_BLOCKS = 8_192
"""Hashes of at most this many leading blocks are published: 64 KiB of a 1 MiB NATS message."""
THREAD_ABOVE_BYTES = 4 * 65_536
"""Prompts above about 64k tokens are hashed in a thread, so that they delay nobody's stream."""
TOKENIZE_IN_THREAD_ABOVE_BYTES = 8_192
"""A tokenizer takes about 50 times as long for a text as its hashing, but only for what is new in it."""
MAX_THREADS = 4


@dataclass(frozen=True, slots=True)
class PromptAccount:
    """What deciders are told of a prompt."""

    input_tokens: int
    blocks: bytes
    method: Method | None = "characters"
    """None: the client gave token ids."""

    @property
    def exact(self) -> bool:
        """Whether the engine will count as many tokens; else it is an estimate."""
        return self.method != "characters"


class Prompts:
    """Counts and hashes prompts by the best method there is for their model."""

    def __init__(
        self, hasher: BlockHasher, tokenizers: Mapping[str, LocalTokenizer], engines: EngineTokenizers
    ) -> None:
        self._hasher = hasher
        self._tokenizers = tokenizers
        self._engines = engines
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "tokenize")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def account(self, request: ApiRequest, records: Sequence[InstanceRecord]) -> PromptAccount:
        """Count and hash a request's prompt, for a model of which these instances are ready."""
        block_size_tokens = records[0].block_size_tokens
        try:
            account = await self._exact(request, records, block_size_tokens)
            has_blocks = not is_salted(request.fields)
        except UnknownPromptError:
            account, has_blocks = None, False
        except Exception as error:
            # The engine may still understand it. Not the error's text: it may hold the prompt's.
            log.error("prompt not tokenized", model=records[0].model, error=type(error).__name__)
            account, has_blocks = None, False
        if account is None:
            in_thread = len(request.body) > THREAD_ABOVE_BYTES
            account = await self._run(
                in_thread, lambda: count_characters(request, self._hasher, block_size_tokens)
            )
        return account if has_blocks else replace(account, blocks=b"")

    def method(self, records: Sequence[InstanceRecord], *, chat: bool) -> Method:
        """How a prompt would be tokenized now for a model of which these instances are ready."""
        tokenizer = self._tokenizer(records)
        if tokenizer is not None and (tokenizer.takes_chats or not chat):
            return "tokenizer"
        return "engine" if any(self._engines.can(record, chat) for record in records) else "characters"

    async def _exact(
        self, request: ApiRequest, records: Sequence[InstanceRecord], block_size_tokens: int
    ) -> PromptAccount | None:
        """By the token ids that the engine will compute; None if nobody here can tell them.

        Raises:
            UnknownPromptError: they depend on more than text.
        """
        fields = request.fields
        check_text(fields)
        chat = chat_of(fields) if isinstance(fields, ChatBody) else None
        if isinstance(fields, CompletionBody) and (given := given_ids(fields.prompt)):
            return count(given, self._hasher, block_size_tokens, None)
        match self.method(records, chat=chat is not None):
            case "tokenizer":
                tokenizer = self._tokenizer(records)
                assert tokenizer is not None
                return await self._run(
                    len(request.body) > TOKENIZE_IN_THREAD_ABOVE_BYTES,
                    lambda: count(
                        _local_ids(tokenizer, fields, chat), self._hasher, block_size_tokens, "tokenizer"
                    ),
                )
            case "engine":
                ids = await self._engine_ids(records, fields, chat)
                return None if ids is None else count([ids], self._hasher, block_size_tokens, "engine")
            case "characters":
                return None

    async def _engine_ids(
        self, records: Sequence[InstanceRecord], fields: ChatBody | CompletionBody, chat: Chat | None
    ) -> TokenIds | None:
        if chat is not None:
            return await self._engines.chat(records, chat)
        assert isinstance(fields, CompletionBody)
        texts = texts_of(fields.prompt)
        if len(texts) > 1:
            return None  # As many questions would wait for each other.
        return await self._engines.text(records, texts[0], adds_special_tokens(fields))

    def _tokenizer(self, records: Sequence[InstanceRecord]) -> LocalTokenizer | None:
        """The tokenizer of a pool, or else of its model."""
        record = records[0]
        return self._tokenizers.get(record.pool) or self._tokenizers.get(record.model)

    async def _run(self, in_thread: bool, job: Callable[[], PromptAccount]) -> PromptAccount:
        if not in_thread:
            return job()
        return await asyncio.get_running_loop().run_in_executor(self._threads, job)


def count_characters(request: ApiRequest, hasher: BlockHasher, block_size_tokens: int) -> PromptAccount:
    """Without a tokenizer: pseudo-tokens of four bytes."""
    fields = request.fields
    if isinstance(fields, ChatBody):
        prompts = [chat_tokens((m["role"], content_text(m.get("content"))) for m in fields.messages)]
    else:
        prompts = given_ids(fields.prompt) or [text_tokens(text) for text in texts_of(fields.prompt)]
    return count(prompts, hasher, block_size_tokens, "characters")


def count(
    prompts: Sequence[TokenIds], hasher: BlockHasher, block_size_tokens: int, method: Method | None
) -> PromptAccount:
    """Tokens of all prompts of a request; blocks of the first, since one instance serves all of them."""
    leading = prompts[0][: MAX_BLOCKS * block_size_tokens]
    blocks = hasher.chain(leading, block_size_tokens)
    # Engines begin even an empty prompt with a token.
    input_tokens = max(1, sum(len(tokens) for tokens in prompts))
    return PromptAccount(input_tokens, blocks[: MAX_BLOCKS * HASH_BYTES], method)


def given_ids(prompt: Prompt) -> list[TokenIds]:
    """The prompts of a completion that were given as token ids; none if they are texts."""
    if isinstance(prompt, str) or isinstance(prompt[0], str):
        return []
    if isinstance(prompt[0], int):
        return [np.array(prompt, dtype=np.uint32)]
    return [id_tokens(item) for item in prompt if isinstance(item, list)]


def texts_of(prompt: Prompt) -> list[str]:
    """The prompts of a completion that were given as texts."""
    return [prompt] if isinstance(prompt, str) else [item for item in prompt if isinstance(item, str)]


def adds_special_tokens(fields: CompletionBody) -> bool:
    """Whether a completion's prompt is to begin (and end) as a sequence does; engines do so unless told."""
    return fields.add_special_tokens is None or bool(fields.add_special_tokens)


def _local_ids(
    tokenizer: LocalTokenizer, fields: ChatBody | CompletionBody, chat: Chat | None
) -> list[TokenIds]:
    if chat is not None:
        return [tokenizer.chat(chat)]
    assert isinstance(fields, CompletionBody)
    return [tokenizer.text(text, adds_special_tokens(fields)) for text in texts_of(fields.prompt)]
