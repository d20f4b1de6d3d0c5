"""Reading the rows of a trace file, and saying where one is wrong."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from lab.errors import TraceError

MAX_TOKENS = 10_000_000
"""No model has a longer context: a length above it is an error in the file."""

MAX_TIME_S = 1e11
"""3,000 years: a time above it is an error in the file."""

Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S * 1000)]
BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

Row = TypeVar("Row")


def json_rows(
    path: Path, lines: Iterable[str], row_type: type[Row], format_name: str
) -> Iterator[tuple[int, Row]]:
    """`(line number, row)` for each line that is not blank.

    Raises:
        TraceError: a line is not JSON, or not such a row.
    """
    decoder = msgspec.json.Decoder(row_type)
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        try:
            yield number, decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(path, f"not a {format_name} row: {error}", number) from error


def csv_rows(path: Path, lines: Iterable[str], columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """`(line number, the values of these columns)` for each row below the header, whatever their order in it.

    Raises:
        TraceError: a column is missing, a row has another number of fields than the header, or it is not CSV.
    """
    reader = csv.reader(lines, strict=True)
    try:
        header = [name.strip() for name in next(row for row in reader if row)]
        missing = [column for column in columns if column not in header]
        if missing:
            raise TraceError(path, f"the header has no column {', '.join(missing)}", reader.line_num)
        places = [header.index(column) for column in columns]
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise TraceError(
                    path, f"{len(row)} fields, where the header names {len(header)}", reader.line_num
                )
            yield reader.line_num, [row[place].strip() for place in places]
    except csv.Error as error:
        raise TraceError(path, f"not CSV: {error}", reader.line_num) from error


def parse_tokens(path: Path, line: int, column: str, text: str, least: int = 1) -> int:
    """A number of tokens.

    Raises:
        TraceError: it is not a whole number between `least` and `MAX_TOKENS`.
    """
    if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= MAX_TOKENS:
        return int(text)
    raise TraceError(
        path, f"{column} must be a whole number from {least} to {MAX_TOKENS:,}, not {_shown(text)}", line
    )


def parse_seconds(path: Path, line: int, column: str, text: str) -> float:
    """Seconds from the start of the trace.

    Raises:
        TraceError: it is not a finite number between 0 and `MAX_TIME_S`.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if isfinite(seconds) and 0 <= seconds <= MAX_TIME_S and text.isascii() and "_" not in text:
        return seconds
    raise TraceError(path, f"{column} must be a number of seconds of at least 0, not {_shown(text)}", line)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
