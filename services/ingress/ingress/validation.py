"""Checks a request body and prepares the one sent to the engine, without re-encoding it.

Only the fields TokenFleet needs are decoded; everything else stays as the bytes the client sent.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from ingress.errors import ApiError

Operation = Literal["chat", "text_completion"]
Prompt = str | list[int | str | list[int]]

DEFAULT_COMPLETION_TOKENS = 16
"""What OpenAI's completions API generates when `max_tokens` is absent."""
DEFAULT_CHAT_TOKENS = 4096
"""The output budget assumed for a chat that names none; a bound for planning, not a limit."""

_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_SAFE_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    service_tier: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    # What follows changes the prompt's token ids or its blocks. The engine checks it: engines differ in what they take.
    add_special_tokens: Any = None
    truncate_prompt_tokens: Any = None
    kv_transfer_params: Any = None
    cache_salt: Any = None
    extra_key: Any = None


class ChatBody(_Body, frozen=True, kw_only=True):
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: Any = None
    documents: Any = None
    reasoning_effort: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None


class CompletionBody(_Body, frozen=True, kw_only=True):
    prompt: Prompt
    best_of: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    prompt_embeds: Any = None


_DECODERS: dict[Operation, msgspec.json.Decoder[Any]] = {
    "chat": msgspec.json.Decoder(ChatBody),
    "text_completion": msgspec.json.Decoder(CompletionBody),
}
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TRUE = msgspec.Raw(b"true")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A valid request: what was asked, and the body as the client sent it."""

    operation: Operation
    body: bytes
    fields: ChatBody | CompletionBody

    @property
    def stream(self) -> bool:
        return bool(self.fields.stream)

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for the usage event of a stream."""
        options = self.fields.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def max_output_tokens(self) -> int:
        """Upper bound of the tokens to generate, over all choices."""
        fields = self.fields
        if isinstance(fields, ChatBody):
            budget = fields.max_completion_tokens or fields.max_tokens or DEFAULT_CHAT_TOKENS
            return budget * (fields.n or 1)
        prompts = 1
        if isinstance(fields.prompt, list) and not isinstance(fields.prompt[0], int):
            prompts = len(fields.prompt)
        choices = max(fields.n or 1, fields.best_of or 1)
        return (fields.max_tokens or DEFAULT_COMPLETION_TOKENS) * choices * prompts

    def engine_body(self, model: str) -> bytes:
        """The body to send: as received, but naming the engine's `model`, and with usage always streamed."""
        rename = model != self.fields.model
        inject = self.stream and not self.wants_usage
        if not rename and not inject:
            return self.body
        if not rename and self.fields.stream_options is None and b'"stream_options"' not in self.body:
            start = self.body.index(b"{") + 1
            return b"".join(
                (self.body[:start], b'"stream_options":{"include_usage":true},', self.body[start:])
            )
        # Values stay the client's bytes; only the outermost object is written anew.
        fields = _RAW_FIELDS.decode(self.body)
        fields["model"] = msgspec.Raw(msgspec.json.encode(model))
        if inject:
            given = fields.get("stream_options", msgspec.Raw(b"null"))
            options = msgspec.json.decode(given, type=dict[str, msgspec.Raw] | None) or {}
            options["include_usage"] = _TRUE
            fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
        return msgspec.json.encode(fields)


def parse(operation: Operation, body: bytes) -> ApiRequest:
    """Decode and check a request body.

    Raises:
        ApiError: 400, naming the parameter at fault where there is one.
    """
    try:
        fields = _DECODERS[operation].decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"The body is not valid JSON: {error or 'nested too deeply'}."
        raise ApiError(400, message, code="invalid_json") from error
    if isinstance(fields, ChatBody):
        _check_messages(fields.messages)
    else:
        _check_prompt(fields.prompt)
    if fields.stream_options is not None and not fields.stream:
        raise ApiError(400, "stream_options is only allowed when stream is true.", param="stream_options")
    return ApiRequest(operation, body, fields)


def client_request_id(header: str | None) -> str | None:
    """The client's own id for a request, when it is safe to store and to print."""
    return header if header and _SAFE_ID.fullmatch(header) else None


def _invalid(problem: str) -> ApiError:
    place = _AT.search(problem)
    param = place.group(1) if place else None
    if missing := re.search(r"missing required field `([^`]+)`", problem):
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
    reason = _AT.sub("", problem)
    return ApiError(400, f"{param}: {reason}." if param else f"{reason}.", param=param, code="invalid_value")


def _check_messages(messages: list[dict[str, Any]]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise _wrong(f"messages[{index}].role", "a string is required")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise _wrong(f"messages[{index}].content", "expected a string, an array of parts or null")


def _check_prompt(prompt: Prompt) -> None:
    if isinstance(prompt, str):
        return
    if not prompt:
        raise _wrong("prompt", "an empty array is not a prompt")
    if len({type(item) for item in prompt}) > 1:
        raise _wrong(
            "prompt", "expected a string, an array of strings, of token ids, or of arrays of token ids"
        )
    for item in prompt if isinstance(prompt[0], list) else [prompt]:
        if isinstance(item, list) and any(isinstance(id_, int) and not 0 <= id_ < 2**32 for id_ in item):
            raise _wrong("prompt", "a token id must be between 0 and 4294967295")


def _wrong(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}.", param=param, code="invalid_value")
