"""What a trace holds, in figures."""

import msgspec
import numpy as np

from lab.traces.model import Trace

PERCENTS = (10, 50, 90, 99)


class LengthSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and percentiles of one length, in tokens."""

    mean: float
    percentiles: dict[int, float]


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that tell how heavy a trace is and how much of it a cache could save."""

    requests: int
    span_s: float
    rate_per_s: float | None
    """None for a trace without duration."""
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    reusable_share: float
    """Share of the input tokens that an infinite cache shared by the whole fleet would hold already."""


def summarise(trace: Trace) -> TraceSummary:
    """The figures of a trace of at least one request."""
    requests = trace.requests
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    return TraceSummary(
        requests=len(requests),
        span_s=span_s,
        rate_per_s=(len(requests) - 1) / span_s if span_s > 0 else None,
        input_tokens=_lengths([request.input_tokens for request in requests]),
        output_tokens=_lengths([request.output_tokens for request in requests]),
        reusable_share=reusable_share(trace),
    )


def reusable_share(trace: Trace) -> float:
    """Share of the input tokens in leading blocks that some earlier request of the trace had too."""
    seen: set[int] = set()
    reusable = 0
    total = 0
    for request in trace.requests:
        known = 0
        for block_id in request.block_ids:
            if block_id not in seen:
                break
            known += 1
        reusable += min(known * request.trace_block_tokens, request.input_tokens)
        total += request.input_tokens
        seen.update(request.block_ids)
    return reusable / total if total else 0.0


def _lengths(tokens: list[int]) -> LengthSummary:
    values = np.percentile(tokens, PERCENTS)
    return LengthSummary(
        mean=float(np.mean(tokens)),
        percentiles={percent: float(value) for percent, value in zip(PERCENTS, values, strict=True)},
    )
