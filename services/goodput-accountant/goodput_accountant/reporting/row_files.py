"""Rows of the ledger in files: CSV, JSON Lines or Parquet, told by the name.

- .csv[.gz]     a header, then a line a row; nothing where a value is not known, `true` and `false`, terms by spaces.
- .jsonl[.gz]   an object a row, with every column; `null` where a value is not known.
- .parquet      typed columns, compressed with Zstandard, a row group for about every 65,536 rows.

Gzip without a name and a time inside: the same rows make the same file.
"""

import csv
import gzip
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, get_args, get_type_hints

import msgspec

from goodput_accountant.policy.accounting import LedgerRow
from tokenfleet.errors import TokenFleetError

SUFFIXES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")
ROW_GROUP_ROWS = 65_536

Rows = Sequence[Sequence[Any]]


class ExportError(TokenFleetError):
    """There is nothing to write, or something is in the way."""


class RowFile(Protocol):
    """A file being written."""

    def add(self, rows: Rows) -> None: ...

    def finish(self) -> None:
        """Write what is not written yet; the file itself stays open."""
        ...

    def abandon(self) -> None:
        """Write nothing more."""
        ...


def writes(path: Path) -> bool:
    """Whether a name says in which form to write."""
    return path.name.endswith(SUFFIXES) and path.name not in SUFFIXES


@contextmanager
def row_file(path: Path, columns: Sequence[str]) -> Iterator[RowFile]:
    """Write a file. It has another name until the block ends, and is deleted if that ends in an error.

    Raises:
        ExportError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as raw:
            rows = _form(path)(raw, columns)
            try:
                yield rows
                rows.finish()
            except BaseException:
                rows.abandon()
                raise
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _form(path: Path) -> Callable[[IO[bytes], Sequence[str]], RowFile]:
    name = path.name
    if name.endswith(".parquet"):
        return _Parquet
    lines = _Csv if name.endswith((".csv", ".csv.gz")) else _JsonLines
    return (lambda raw, columns: _Gzipped(raw, columns, lines)) if name.endswith(".gz") else lines


class _Csv:
    def __init__(self, raw: IO[bytes], columns: Sequence[str]) -> None:
        self._text = io.TextIOWrapper(raw, encoding="utf-8", newline="", write_through=False)
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(columns)

    def add(self, rows: Rows) -> None:
        self._writer.writerows(map(_cells, rows))

    def finish(self) -> None:
        self._text.flush()
        self._text.detach()

    def abandon(self) -> None:
        pass


def _cells(row: Sequence[Any]) -> list[Any]:
    return [_CELL[type(value)](value) if type(value) in _CELL else value for value in row]


_CELL: dict[type, Callable[[Any], str]] = {
    bool: lambda value: "true" if value else "false",
    list: " ".join,
    tuple: " ".join,
}


class _JsonLines:
    def __init__(self, raw: IO[bytes], columns: Sequence[str]) -> None:
        self._raw = raw
        self._columns = columns
        self._encode = msgspec.json.Encoder().encode

    def add(self, rows: Rows) -> None:
        for row in rows:
            self._raw.write(self._encode(dict(zip(self._columns, row, strict=True))) + b"\n")

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class _Gzipped:
    def __init__(
        self, raw: IO[bytes], columns: Sequence[str], form: Callable[[IO[bytes], Sequence[str]], RowFile]
    ) -> None:
        gzipped = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6)
        self._lines = io.BufferedWriter(gzipped, 1 << 20)  # pyright: ignore[reportArgumentType]
        self._rows = form(self._lines, columns)

    def add(self, rows: Rows) -> None:
        self._rows.add(rows)

    def finish(self) -> None:
        self._rows.finish()
        self._lines.close()  # closes the gzip stream too, not the file

    def abandon(self) -> None:
        self._rows.abandon()


class _Parquet:
    def __init__(self, raw: IO[bytes], columns: Sequence[str]) -> None:
        # Loaded only here: it takes a second, and most commands have no use for it.
        import pyarrow
        import pyarrow.parquet

        self._arrow = pyarrow
        self._schema = _arrow_schema(pyarrow, columns)
        self._writer = pyarrow.parquet.ParquetWriter(raw, self._schema, compression="zstd")
        self._rows: list[Sequence[Any]] = []

    def add(self, rows: Rows) -> None:
        self._rows += rows
        while len(self._rows) >= ROW_GROUP_ROWS:
            self._write(self._rows[:ROW_GROUP_ROWS])
            del self._rows[:ROW_GROUP_ROWS]

    def finish(self) -> None:
        if self._rows:
            self._write(self._rows)
        self._writer.close()

    def abandon(self) -> None:
        # Else it writes the file's end when it is forgotten, into a file that is closed by then.
        self._writer.is_open = False

    def _write(self, rows: Rows) -> None:
        columns = zip(*rows, strict=True)
        arrays = [
            self._arrow.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))


def _arrow_schema(arrow: Any, columns: Sequence[str]) -> Any:
    """The types that rows have by their contract; what may be absent is nullable."""
    hints = get_type_hints(LedgerRow)
    if unknown := [name for name in columns if name not in hints]:
        raise ExportError(
            f"The accountant has columns that this version does not know: {', '.join(unknown)}. Use the version that runs "
            "there, or write CSV or JSON Lines."
        )
    return arrow.schema([_arrow_field(arrow, name, hints[name]) for name in columns])


def _arrow_field(arrow: Any, name: str, hint: Any) -> Any:
    nullable = type(None) in get_args(hint)
    [kind] = [each for each in get_args(hint) if each is not type(None)] if nullable else [hint]
    if kind == tuple[str, ...]:
        return arrow.field(name, arrow.list_(arrow.string()), nullable)
    types = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    # What is left are names, and literals, which are strings.
    return arrow.field(name, types.get(kind, arrow.string()), nullable)
