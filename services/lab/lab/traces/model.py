"""A workload trace, whatever format it came in."""

from collections.abc import Sequence

import msgspec

TRACE_BLOCK_TOKENS = 512
"""Tokens behind one block id in Mooncake's files; the generator and the CSV loaders use the same."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace. Two requests share a prompt prefix as far as their block ids are equal."""

    arrival_s: float
    """Seconds since the first request of the trace."""
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    """One id for each started block of the input. An id stands for its block and all that precedes it."""
    trace_block_tokens: int = TRACE_BLOCK_TOKENS
    tenant: str | None = None
    task: str | None = None
    """What the request is for, in the words of the trace; `batch` as clients declare it."""
    session: int | None = None
    """Requests of one conversation, agent or batch job have the same number."""
    deadline_s: float | None = None
    """Seconds after its arrival by which the whole answer is due."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in order of arrival, and what had to be assumed to get them."""

    source: str
    format: str
    requests: Sequence[TraceRequest]
    """May be made as they are read (`RequestColumns`): iterate once where there can be a million."""
    assumptions: tuple[str, ...] = ()

    def head(self, count: int | None) -> "Trace":
        """The first `count` requests; all of them if None."""
        if count is None or count >= len(self.requests):
            return self
        return msgspec.structs.replace(self, requests=self.requests[:count])


def blocks_in(input_tokens: int, block_tokens: int = TRACE_BLOCK_TOKENS) -> int:
    """How many blocks an input of this length starts."""
    return -(-input_tokens // block_tokens)
