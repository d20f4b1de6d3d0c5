"""What a trace holds, in figures."""

from collections import Counter, defaultdict

import msgspec
import numpy as np

from lab.traces.model import Trace

PERCENTS = (10, 50, 90, 99)


class LengthSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and percentiles of one length, in tokens."""

    mean: float
    percentiles: dict[int, float]


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one task type asks for."""

    requests: int
    mean_input_tokens: float
    mean_output_tokens: float
    with_deadline: int


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
    tasks: dict[str, TaskSummary]
    """By task type, the most frequent first; empty for a trace that tells none, as are the next two."""
    tenants: dict[str, int]
    """Requests of each tenant, the largest first."""
    sessions: int
    longest_session_requests: int


def summarise(trace: Trace) -> TraceSummary:
    """The figures of a trace of at least one request."""
    prefixes = _Prefixes()
    inputs: list[int] = []
    outputs: list[int] = []
    tenants: Counter[str] = Counter()
    sessions: Counter[int] = Counter()
    rows_of_task: defaultdict[str, list[int]] = defaultdict(list)
    deadlines_of_task: Counter[str] = Counter()
    first_s = last_s = 0.0
    for row, request in enumerate(trace.requests):
        if not row:
            first_s = request.arrival_s
        last_s = request.arrival_s
        inputs.append(request.input_tokens)
        outputs.append(request.output_tokens)
        prefixes.add(request.block_ids, request.trace_block_tokens, request.input_tokens)
        if request.tenant is not None:
            tenants[request.tenant] += 1
        if request.session is not None:
            sessions[request.session] += 1
        if request.task is not None:
            rows_of_task[request.task].append(row)
            deadlines_of_task[request.task] += request.deadline_s is not None
    span_s = last_s - first_s
    input_tokens, output_tokens = np.array(inputs), np.array(outputs)
    return TraceSummary(
        requests=len(inputs),
        span_s=span_s,
        rate_per_s=(len(inputs) - 1) / span_s if span_s > 0 else None,
        input_tokens=_lengths(inputs),
        output_tokens=_lengths(outputs),
        reusable_share=prefixes.reusable_tokens / sum(inputs),
        tasks={
            task: TaskSummary(
                requests=len(rows),
                mean_input_tokens=float(input_tokens[rows].mean()),
                mean_output_tokens=float(output_tokens[rows].mean()),
                with_deadline=deadlines_of_task[task],
            )
            for task, rows in sorted(rows_of_task.items(), key=lambda item: -len(item[1]))
        },
        tenants=dict(tenants.most_common()),
        sessions=len(sessions),
        longest_session_requests=max(sessions.values(), default=0),
    )


def reusable_share(trace: Trace) -> float:
    """Share of the input tokens in leading blocks that some earlier request of the trace had too."""
    prefixes = _Prefixes()
    total = 0
    for request in trace.requests:
        prefixes.add(request.block_ids, request.trace_block_tokens, request.input_tokens)
        total += request.input_tokens
    return prefixes.reusable_tokens / total if total else 0.0


class _Prefixes:
    """An infinite cache, and what it could have saved so far."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.reusable_tokens = 0

    def add(self, block_ids: tuple[int, ...], block_tokens: int, input_tokens: int) -> None:
        known = 0
        for block_id in block_ids:
            if block_id not in self._seen:
                break
            known += 1
        self.reusable_tokens += min(known * block_tokens, input_tokens)
        self._seen.update(block_ids[known:])


def _lengths(tokens: list[int]) -> LengthSummary:
    values = np.percentile(tokens, PERCENTS)
    return LengthSummary(
        mean=float(np.mean(tokens)),
        percentiles={percent: float(value) for percent, value in zip(PERCENTS, values, strict=True)},
    )
