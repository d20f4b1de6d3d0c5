"""Recorded events in files that outlive the stream: gzip-compressed JSON Lines.

The first line says what the file covers, the last how much there is before it; each other line is one message::

    {"tokenfleet_events": 1, "from_ns": 1767261600000000000, "to_ns": 1767265200000000000}
    {"sequence": 7, "time_ns": 1767261601250000000, "subject": "tf.v1.local.request...", "event": {...}}
    {"messages": 1, "sha256": "..."}

A message that is not JSON has `data_base64` instead of `event`. The SHA-256 is of all the lines before it, line ends
included. Files joined with `cat` are a file, too. Neither side ever holds more than one line in memory.
"""

import base64
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from tokenfleet.errors import TokenFleetError

FORMAT = 1
SUFFIX = ".jsonl.gz"
LONGEST_LINE = 64 << 20
"""Bytes; NATS takes messages of at most 64 MiB, and by default of 1 MiB."""


class EventLogError(TokenFleetError):
    """A file is not a whole file of exported events; the message names the line."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One message as a stream held it."""

    subject: str
    time_ns: int
    """When the stream took it."""
    sequence: int
    """Its position in its stream."""
    data: bytes


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A file holds every event that the stream took from a moment (inclusive) to another (exclusive), Unix ns."""

    from_ns: int
    to_ns: int


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    tokenfleet_events: int
    from_ns: int
    to_ns: int


class _Trailer(msgspec.Struct, frozen=True, kw_only=True):
    messages: int
    sha256: str


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    sequence: int
    time_ns: int
    subject: str
    event: msgspec.Raw = msgspec.Raw(b"")
    data_base64: str | None = None


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_trailer = msgspec.json.Decoder(_Trailer).decode


class LogWriter:
    """Writes one file. It has another name until the block ends, and is deleted if that ends in an error."""

    def __init__(self, path: Path, span: Span) -> None:
        """Begin a file.

        Raises:
            EventLogError: it cannot be written there.
        """
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._digest = hashlib.sha256()
        self.messages = 0
        try:
            self._raw: IO[bytes] = self._partial.open("wb")
        except OSError as error:
            raise EventLogError(f"{path} cannot be written: {error.strerror or error}.") from error
        # Without a name and a time inside, the same events make the same file.
        self._gzip = gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, mtime=0, compresslevel=6)
        self._lines = io.BufferedWriter(self._gzip, 1 << 20)  # pyright: ignore[reportArgumentType]
        self._write(_encode(_Header(tokenfleet_events=FORMAT, from_ns=span.from_ns, to_ns=span.to_ns)))

    def add(self, event: LoggedEvent) -> None:
        """Append one message.

        Raises:
            EventLogError: the disk is full, or gone.
        """
        self._write(_encode(_line(event)))
        self.messages += 1

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._write(_encode(_Trailer(messages=self.messages, sha256=self._digest.hexdigest())))
                self._finish()
        finally:
            with suppress(OSError, ValueError):
                self._raw.close()
            self._partial.unlink(missing_ok=True)

    def _write(self, line: bytes) -> None:
        try:
            self._lines.write(line + b"\n")
        except OSError as error:
            raise EventLogError(f"{self._path} cannot be written: {error.strerror or error}.") from error
        self._digest.update(line + b"\n")

    def _finish(self) -> None:
        try:
            self._lines.close()  # closes the gzip stream too, not the file
            self._raw.flush()
            os.fsync(self._raw.fileno())
            self._partial.replace(self._path)
        except OSError as error:
            raise EventLogError(f"{self._path} cannot be written: {error.strerror or error}.") from error


def write_log(path: Path, events: Iterable[LoggedEvent], span: Span) -> int:
    """Write a whole file and return how many messages it has.

    Raises:
        EventLogError: it cannot be written; then there is none.
    """
    with LogWriter(path, span) as writer:
        for event in events:
            writer.add(event)
    return writer.messages


def read_log(path: Path) -> Iterator[LoggedEvent]:
    """The messages of a file, in the order in which they were written.

    Raises:
        EventLogError: while iterating: it is not such a file, or is damaged or cut off; the message names the line.
    """
    return (item for item in read_log_and_spans(path) if isinstance(item, LoggedEvent))


def read_log_and_spans(path: Path) -> Iterator[Span | LoggedEvent]:
    """The same, and before the messages what they cover: once, or once for each of several files joined.

    Raises:
        EventLogError: as `read_log`.
    """
    number, messages, digest = 0, 0, hashlib.sha256()
    inside = False
    for line in _lines(path):
        number += 1
        try:
            if not inside:
                yield _span(line)
                inside, messages, digest = True, 0, hashlib.sha256()
            elif line.startswith(b'{"messages":'):
                _compare(_decode_trailer(line), messages, digest.hexdigest())
                inside = False
            else:
                yield _event(line)
                messages += 1
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise EventLogError(f"{path}, line {number:,}: {error}.") from error
        digest.update(line)
    if not number:
        raise EventLogError(f"{path} is empty: not a file of `tokenfleet audit export`.")
    if inside:
        raise EventLogError(
            f"{path} is cut off after line {number:,}: its last line, with the number of messages, is missing."
        )


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with gzip.open(path, "rb") as lines:
            while line := lines.readline(LONGEST_LINE):
                if not line.endswith(b"\n"):
                    raise EventLogError(f"{path} is cut off within line {number + 1:,}.")
                number += 1
                yield line
    except EOFError as error:
        raise EventLogError(
            f"{path} is cut off after line {number:,}: the compressed data ends early."
        ) from error
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno:
            raise EventLogError(f"{path} cannot be read: {error.strerror}.") from error
        raise EventLogError(f"{path} is damaged after line {number:,}: {error}.") from error


def _span(line: bytes) -> Span:
    try:
        header = _decode_header(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"not the first line of a file of `tokenfleet audit export` ({error})") from error
    if header.tokenfleet_events != FORMAT:
        raise ValueError(
            f"format {header.tokenfleet_events} is not known to this version of TokenFleet (it knows {FORMAT})"
        )
    return Span(from_ns=header.from_ns, to_ns=header.to_ns)


def _event(line: bytes) -> LoggedEvent:
    said = _decode_line(line)
    if said.data_base64 is not None:
        data = base64.b64decode(said.data_base64, validate=True)
    elif data := bytes(said.event):
        pass
    else:
        raise ValueError("it has neither `event` nor `data_base64`")
    return LoggedEvent(subject=said.subject, time_ns=said.time_ns, sequence=said.sequence, data=data)


def _compare(trailer: _Trailer, messages: int, sha256: str) -> None:
    if trailer.messages != messages:
        raise ValueError(
            f"there should be {trailer.messages:,} messages before this, and there are {messages:,}"
        )
    if trailer.sha256 != sha256:
        raise ValueError("the lines before this were changed: their SHA-256 is another")


def _line(event: LoggedEvent) -> _Line:
    line = _Line(sequence=event.sequence, time_ns=event.time_ns, subject=event.subject)
    if _fits_in_a_line(event.data):
        return msgspec.structs.replace(line, event=msgspec.Raw(event.data))
    return msgspec.structs.replace(line, data_base64=base64.b64encode(event.data).decode())


def _fits_in_a_line(data: bytes) -> bool:
    if b"\n" in data:
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
