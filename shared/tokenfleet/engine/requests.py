"""What goes into the engine model and what comes out of it."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec

from tokenfleet.errors import TokenFleetError


class ContextTooLongError(TokenFleetError):
    """A prompt leaves no room for output within the engine's context."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the model needs to know of a request. `block_hashes` are chained, one per full prompt block."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """How many it will produce; fewer if the context ends before."""
    block_hashes: Sequence[Hashable] = ()


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """A request produced its first token."""

    request_id: str
    time_s: float
    scheduled_s: float
    """When its first chunk was scheduled: until then it was waiting."""
    reused_tokens: int
    """Prompt tokens found in the prefix cache at that time."""


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A request produced its last token."""

    request_id: str
    time_s: float
    output_tokens: int


EngineEvent = FirstToken | Finished


class NextEvent(NamedTuple):
    """When to look again, and whether a first token or a finish is due then."""

    time_s: float
    notable: bool


class EngineCounters(msgspec.Struct):
    """Totals since the engine started, as vLLM counts them."""

    prompt_tokens: int = 0
    """Of requests that got their first token, cached tokens included."""
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    cancelled: int = 0
