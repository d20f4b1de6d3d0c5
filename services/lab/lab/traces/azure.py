"""Azure's LLM inference traces: CSV of `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`."""

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from lab.errors import TraceError
from lab.traces.arrivals import SORTED, spread_buckets
from lab.traces.model import Trace, TraceRequest, blocks_in

FORMAT = "azure"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def load_azure(path: Path, lines: Iterable[str], seed: int) -> Trace:
    """Requests from the lines of an Azure file, its header included.

    Raises:
        TraceError: a column is missing or a value is not what it should be.
    """
    reader = csv.DictReader(lines, strict=True)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise TraceError(path, f"the header has no column {', '.join(missing)}", 1)
    try:
        rows = [_row(path, reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise TraceError(path, f"not CSV: {error}", reader.line_num) from error
    assumptions = ["the file tells no prefixes: every prompt is synthetic and shares nothing with any other"]
    if rows != sorted(rows, key=lambda row: row[0]):
        rows.sort(key=lambda row: row[0])
        assumptions.append(SORTED)
    times, spreading = spread_buckets([time - rows[0][0] for time, _, _ in rows], seed)
    fresh_ids = count()
    requests = tuple(
        TraceRequest(
            arrival_s=time - times[0],
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            block_ids=tuple(next(fresh_ids) for _ in range(blocks_in(input_tokens))),
        )
        for time, (_, input_tokens, output_tokens) in zip(times, rows, strict=True)
    )
    return Trace(source=path.name, format=FORMAT, requests=requests, assumptions=(*assumptions, *spreading))


def _row(path: Path, number: int, row: dict[str, str | None]) -> tuple[float, int, int]:
    """`(unix seconds, input tokens, output tokens)`."""
    try:
        moment = datetime.fromisoformat(row["TIMESTAMP"] or "")
    except ValueError as error:
        raise TraceError(path, f"TIMESTAMP is not a time: {row['TIMESTAMP']!r}", number) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (
        moment.timestamp(),
        _natural(path, number, row, "ContextTokens"),
        _natural(path, number, row, "GeneratedTokens"),
    )


def _natural(path: Path, number: int, row: dict[str, str | None], column: str) -> int:
    text = (row[column] or "").strip()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise TraceError(path, f"{column} must be a whole number of at least 1, not {text!r}", number)
    return int(text)
