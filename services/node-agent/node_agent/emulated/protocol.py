"""Request bodies as vLLM's OpenAI server takes them, and its error bodies.

Unknown fields are passed over, as there; only what changes the emulated answer is read.
"""

from typing import Annotated, Any

import msgspec
import numpy as np

from tokenfleet.blocks import TokenIds, id_tokens, text_tokens
from tokenfleet.prompts import chat_tokens, content_text

Count = Annotated[int, msgspec.Meta(ge=1)]


class ApiError(Exception):
    """A refusal with an HTTP status, for the client."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """vLLM's error body."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class StreamOptions(msgspec.Struct, frozen=True):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Count | None = None
    emulated_output_tokens: Count | None = None
    """Ours: how long the answer is to be, as a trace tells."""

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat."""

    role: str
    content: str | list[Any] | None = None


class ChatBody(_Body, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`"""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None

    @property
    def limit_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def tokens(self) -> TokenIds:
        """The prompt's pseudo-tokens."""
        return chat_tokens((message.role, content_text(message.content)) for message in self.messages)


class CompletionBody(_Body, frozen=True, kw_only=True):
    """`POST /v1/completions`"""

    prompt: str | list[Any]

    @property
    def limit_tokens(self) -> int | None:
        return self.max_tokens or 16

    def tokens(self) -> TokenIds:
        """The prompt's pseudo-tokens, or its token ids as they are."""
        prompt = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return text_tokens(prompt)
        try:
            return id_tokens(msgspec.convert(prompt, list[int]))
        except (msgspec.ValidationError, OverflowError) as error:
            message = "prompt must be one string or one list of token ids between 0 and 4294967295"
            raise ApiError(400, message, "prompt") from error


_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)


def parse(data: bytes, *, chat: bool) -> tuple[ChatBody | CompletionBody, TokenIds]:
    """Decode and check a body; returns it with its prompt's tokens, at least one.

    Raises:
        ApiError: 400, saying what is wrong.
    """
    try:
        body = (_CHAT if chat else _COMPLETION).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is wrong: {error}") from error
    if body.n is not None and body.n != 1:
        raise ApiError(400, "The emulated engine gives one choice per request; leave n out", "n")
    if body.include_usage and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", "stream_options")
    tokens = body.tokens()
    # An engine's tokenizer adds a token that begins the sequence, so even an empty text is a prompt.
    return body, tokens if len(tokens) else np.zeros(1, dtype=np.uint32)
