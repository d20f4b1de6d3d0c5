"""Requests kept as columns of numbers, and made only when somebody looks at them.

A million requests with their block ids are gigabytes as objects; as columns they are about 100 MB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Protocol, Self, overload

import numpy as np
import numpy.typing as npt

from lab.traces.model import TRACE_BLOCK_TOKENS, TraceRequest

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

CHUNK_ROWS = 4096
"""Rows turned into Python objects at a time."""


class BlockIds(Protocol):
    """The block ids of many prompts, without an object for each id."""

    def __getitem__(self, rows: slice) -> Self: ...

    def __iter__(self) -> Iterator[tuple[int, ...]]: ...


class RunBlockIds:
    """Each prompt is the same small number of runs of consecutive ids; a run may be empty."""

    def __init__(self, starts: Integers, counts: Integers) -> None:
        """Both arrays have a row for each prompt and a column for each run."""
        self._starts = starts
        self._counts = counts

    def __getitem__(self, rows: slice) -> "RunBlockIds":
        return RunBlockIds(self._starts[rows], self._counts[rows])

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        ends = self._starts + self._counts
        for run_starts, run_ends in zip(self._starts.tolist(), ends.tolist(), strict=True):
            yield tuple(chain.from_iterable(map(range, run_starts, run_ends)))


class ListedBlockIds:
    """Each prompt's ids are written out, one prompt after the other."""

    def __init__(self, ids: Integers, bounds: Integers) -> None:
        """Prompt `i` has `ids[bounds[i]:bounds[i + 1]]`."""
        self._ids = ids
        self._bounds = bounds

    def __getitem__(self, rows: slice) -> "ListedBlockIds":
        start, stop, _ = rows.indices(len(self._bounds) - 1)
        return ListedBlockIds(self._ids, self._bounds[start : max(stop, start) + 1])

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        bounds = self._bounds.tolist()
        for start, end in pairwise(bounds):
            yield tuple(self._ids[start:end].tolist())


@dataclass(frozen=True)
class Labels:
    """One of a few names for each request, or none where the code is -1."""

    codes: Integers
    names: tuple[str, ...]

    def __getitem__(self, rows: slice) -> "Labels":
        return replace(self, codes=self.codes[rows])

    def __iter__(self) -> Iterator[str | None]:
        names = (*self.names, None)
        return (names[code] for code in self.codes.tolist())


@dataclass(frozen=True, eq=False)
class RequestColumns(Sequence[TraceRequest]):
    """A sequence of requests in order of arrival. Each look at one makes it anew."""

    arrival_s: Floats
    input_tokens: Integers
    output_tokens: Integers
    block_ids: BlockIds
    trace_block_tokens: int = TRACE_BLOCK_TOKENS
    tenants: Labels | None = None
    tasks: Labels | None = None
    sessions: Integers | None = None
    deadlines_s: Floats | None = None
    """Seconds after arrival; NaN where there is none."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @overload
    def __getitem__(self, index: int) -> TraceRequest: ...

    @overload
    def __getitem__(self, index: slice) -> "RequestColumns": ...

    def __getitem__(self, index: int | slice) -> "TraceRequest | RequestColumns":
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("requests can only be sliced in steps of 1")
            return self._rows(slice(start, max(stop, start)))
        position = range(len(self))[index]
        return next(self._rows(slice(position, position + 1))._requests())

    def __iter__(self) -> Iterator[TraceRequest]:
        for start in range(0, len(self), CHUNK_ROWS):
            yield from self._rows(slice(start, start + CHUNK_ROWS))._requests()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _rows(self, rows: slice) -> "RequestColumns":
        return replace(
            self,
            arrival_s=self.arrival_s[rows],
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            block_ids=self.block_ids[rows],
            tenants=None if self.tenants is None else self.tenants[rows],
            tasks=None if self.tasks is None else self.tasks[rows],
            sessions=None if self.sessions is None else self.sessions[rows],
            deadlines_s=None if self.deadlines_s is None else self.deadlines_s[rows],
        )

    def _requests(self) -> Iterator[TraceRequest]:
        nothing = [None] * len(self)
        sessions = nothing if self.sessions is None else self.sessions.tolist()
        deadlines = nothing if self.deadlines_s is None else self.deadlines_s.tolist()
        for arrival_s, inputs, outputs, block_ids, tenant, task, session, deadline_s in zip(
            self.arrival_s.tolist(),
            self.input_tokens.tolist(),
            self.output_tokens.tolist(),
            self.block_ids,
            self.tenants or nothing,
            self.tasks or nothing,
            sessions,
            deadlines,
            strict=True,
        ):
            yield TraceRequest(
                arrival_s=arrival_s,
                input_tokens=inputs,
                output_tokens=outputs,
                block_ids=block_ids,
                trace_block_tokens=self.trace_block_tokens,
                tenant=tenant,
                task=task,
                session=session,
                # NaN alone differs from itself.
                deadline_s=deadline_s if deadline_s == deadline_s else None,
            )


def private_block_ids(input_tokens: Integers, block_tokens: int = TRACE_BLOCK_TOKENS) -> RunBlockIds:
    """Ids for prompts that share nothing with each other."""
    counts = -(-input_tokens // block_tokens)
    return RunBlockIds((np.cumsum(counts) - counts)[:, np.newaxis], counts[:, np.newaxis])
