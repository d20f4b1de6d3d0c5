"""Mooncake's JSON Lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (one per 512 tokens)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from lab.errors import TraceError
from lab.traces.arrivals import SORTED, spread_buckets
from lab.traces.model import TRACE_BLOCK_TOKENS, Trace, TraceRequest, blocks_in

FORMAT = "mooncake"

Natural = Annotated[int, msgspec.Meta(ge=1)]


class _Row(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Natural
    output_length: Natural
    hash_ids: tuple[int, ...]


def load_mooncake(path: Path, lines: Iterable[str], seed: int) -> Trace:
    """Requests from numbered lines of a Mooncake file.

    Raises:
        TraceError: a line is not such a row, or its block ids do not cover its input.
    """
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    assumptions = [f"each hash id stands for {TRACE_BLOCK_TOKENS} tokens of prompt"]
    times = [row.timestamp / 1000 for row in rows]
    if times != sorted(times):
        rows.sort(key=lambda row: row.timestamp)
        times.sort()
        assumptions.append(SORTED)
    times, spreading = spread_buckets(times, seed)
    requests = tuple(
        TraceRequest(
            arrival_s=time - times[0],
            input_tokens=row.input_length,
            output_tokens=row.output_length,
            block_ids=row.hash_ids,
        )
        for time, row in zip(times, rows, strict=True)
    )
    return Trace(source=path.name, format=FORMAT, requests=requests, assumptions=(*assumptions, *spreading))


def _row(path: Path, number: int, line: str) -> _Row:
    try:
        row = msgspec.json.decode(line, type=_Row)
    except msgspec.MsgspecError as error:
        raise TraceError(path, f"not a Mooncake row: {error}", number) from error
    needed = blocks_in(row.input_length)
    if len(row.hash_ids) != needed:
        raise TraceError(
            path,
            f"{row.input_length} input tokens need {needed} hash ids of {TRACE_BLOCK_TOKENS} tokens, "
            f"not {len(row.hash_ids)}",
            number,
        )
    return row
