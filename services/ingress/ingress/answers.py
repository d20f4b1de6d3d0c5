"""Reads what TokenFleet needs from an engine's answer: its usage, how it finished, whether it has a token."""

from dataclasses import dataclass
from typing import Any

import msgspec

from ingress.policy.happenings import Usage

_TOKEN_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct, frozen=True):
    finish_reason: str | None = None
    text: str | None = None
    delta: dict[str, Any] | None = None

    @property
    def has_token(self) -> bool:
        # The end of an answer is a token too, though one without text.
        if self.finish_reason or self.text:
            return True
        return self.delta is not None and any(self.delta.get(name) for name in _TOKEN_FIELDS)


class _Answer(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one JSON body or streamed event says. Nothing at all when it cannot be read."""

    usage: Usage | None = None
    finish_reason: str | None = None
    has_token: bool = False
    usage_only: bool = False
    """It has no choices and exists only to tell the usage."""
    error: bool = False


NOTHING = Reading()


def read(data: bytes) -> Reading:
    """Read a whole answer's body, or the data of one streamed event."""
    try:
        answer = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return NOTHING
    choices = answer.choices or []
    return Reading(
        usage=_usage(answer.usage),
        finish_reason=next((choice.finish_reason for choice in choices if choice.finish_reason), None),
        has_token=any(choice.has_token for choice in choices),
        usage_only=answer.choices == [] and answer.usage is not None,
        error=answer.error is not None,
    )


def _usage(usage: _Usage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    reused = (details.cached_tokens or 0) if details else 0
    return Usage(usage.prompt_tokens, usage.completion_tokens, reused)
