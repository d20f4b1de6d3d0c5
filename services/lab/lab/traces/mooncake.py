"""Mooncake's JSON Lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (one per 512 tokens)."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from lab.errors import TraceError
from lab.traces.arrivals import arrival_order, spread_buckets
from lab.traces.model import TRACE_BLOCK_TOKENS, Trace, TraceRequest, blocks_in
from lab.traces.rows import BlockId, Milliseconds, Tokens, json_rows

FORMAT = "mooncake"


class _Row(msgspec.Struct, frozen=True):
    timestamp: Milliseconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[BlockId, ...]


def load_mooncake(path: Path, lines: Iterable[str], seed: int) -> Trace:
    """Requests from numbered lines of a Mooncake file.

    Raises:
        TraceError: a line is not such a row, or its block ids do not cover its input.
    """
    rows: list[_Row] = []
    for number, row in json_rows(path, lines, _Row, "Mooncake"):
        _check_coverage(path, number, row)
        rows.append(row)
    order, sorting = arrival_order([row.timestamp for row in rows])
    rows = [rows[place] for place in order]
    times, spreading = spread_buckets([row.timestamp / 1000 for row in rows], seed)
    requests = tuple(
        TraceRequest(
            arrival_s=time - times[0],
            input_tokens=row.input_length,
            output_tokens=row.output_length,
            block_ids=row.hash_ids,
        )
        for time, row in zip(times, rows, strict=True)
    )
    return Trace(
        source=path.name,
        format=FORMAT,
        requests=requests,
        assumptions=(
            f"each hash id stands for {TRACE_BLOCK_TOKENS} tokens of prompt",
            *sorting,
            *spreading,
        ),
    )


def _check_coverage(path: Path, number: int, row: _Row) -> None:
    needed = blocks_in(row.input_length)
    if len(row.hash_ids) != needed:
        raise TraceError(
            path,
            f"{row.input_length} input tokens need {needed} hash ids of {TRACE_BLOCK_TOKENS} tokens, "
            f"not {len(row.hash_ids)}",
            number,
        )
