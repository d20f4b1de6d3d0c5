"""What arrives when: a trace made into the submissions of one run."""

from collections.abc import Iterator, Sequence, Sized
from typing import Protocol

import msgspec

from lab.sim.api import Arrival
from lab.traces.model import Trace, TraceRequest
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec

BATCH_TASK, BATCH_TIER = "batch", "flex"
"""What the batch API says of its lines."""

BUDGET_TOKENS = 2_048
"""Clients ask for one round upper bound, so it does not give an answer's length away."""

DEFAULT_TENANT = "default"

LOCAL = "local"
"""The only site of a scenario that has no others."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client sends it. Submissions of a run are numbered from 0 in order of arrival."""

    number: int
    arrival_s: float
    tenant: str
    request: TraceRequest
    timeout_s: float
    """How long its client waits for the whole answer."""
    entry_site: str = LOCAL
    version: str | None = None
    spec: RequestSpec | None = None
    """As its client described it, on the clock of the run, where that is known: for a recorded request."""

    @property
    def request_id(self) -> str:
        return f"r{self.number}"

    @property
    def task(self) -> str | None:
        return self.request.task


class Workload(Sized, Protocol):
    """What arrives in a run, in order of time. It may be made as it is read, so that a million fit."""

    def __iter__(self) -> Iterator[Submission]: ...


class TraceWorkload:
    """The requests of a trace as they are, arriving `speed` times faster."""

    def __init__(self, trace: Trace, speed: float, timeout_s: float) -> None:
        self._requests = trace.requests
        self._speed = speed
        self._timeout_s = timeout_s

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Submission]:
        for number, request in enumerate(self._requests):
            yield Submission(
                number=number,
                arrival_s=request.arrival_s / self._speed,
                tenant=request.tenant or DEFAULT_TENANT,
                request=request,
                timeout_s=self._timeout_s if request.deadline_s is None else request.deadline_s,
            )


def arrival(
    submission: Submission,
    model: str,
    block_size: int,
    excluded: Sequence[str],
    tenant: Tenant | None = None,
) -> Arrival:
    """What the router sees of a submission.

    Args:
        submission: the request.
        model: what it asks for.
        block_size: tokens per block of the engines.
        excluded: instances it may not use.
        tenant: whose limits it carries, as ingress writes them down; None: it has none.
    """
    request = submission.request
    blocks = prompt_blocks(request, block_size)
    if submission.spec is not None:
        spec = msgspec.structs.replace(
            submission.spec,
            model=model,
            version=submission.version,
            entry_site=submission.entry_site,
            block_size_tokens=block_size,
            excluded_instances=tuple(excluded),
        )
        return Arrival(submission.request_id, submission.arrival_s, submission.tenant, spec, blocks)
    batch_line = submission.task == BATCH_TASK
    deadline_ns = round((submission.arrival_s + submission.timeout_s) * 1e9)
    spec = RequestSpec(
        model=model,
        version=submission.version,
        entry_site=submission.entry_site,
        ingress="lab",
        input_tokens=request.input_tokens,
        max_output_tokens=max(BUDGET_TOKENS, request.output_tokens),
        block_size_tokens=block_size,
        stream=not batch_line,
        task=submission.task,
        service_tier=BATCH_TIER if batch_line else None,
        deadline_ns=deadline_ns,
        due_ns=deadline_ns if batch_line and request.deadline_s is not None else 0,
        sites=tenant.sites if tenant else None,
        regions=tenant.regions if tenant else None,
        excluded_instances=tuple(excluded),
    )
    return Arrival(submission.request_id, submission.arrival_s, submission.tenant, spec, blocks)


def prompt_blocks(request: TraceRequest, block_size: int) -> tuple[int, ...]:
    """Chained ids of a prompt's full blocks, at the engines' block size.

    Raises:
        ValueError: neither block size is a multiple of the other.
    """
    count = request.input_tokens // block_size
    per_trace_block, rest = divmod(request.trace_block_tokens, block_size)
    if rest == 0:
        ids = request.block_ids[: -(-count // per_trace_block)]
        blocks = [
            block
            for parent in ids
            for block in range(parent * per_trace_block, (parent + 1) * per_trace_block)
        ]
        return tuple(blocks[:count])
    step, rest = divmod(block_size, request.trace_block_tokens)
    if rest:
        raise ValueError(
            f"The trace tells prefixes in blocks of {request.trace_block_tokens} tokens: choose a block size that "
            f"divides it or is a multiple of it, not {block_size}"
        )
    # Ids are chained: the last one within a block stands for all of it.
    return request.block_ids[step - 1 : count * step : step]
