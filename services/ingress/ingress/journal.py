"""What this ingress still owes the fleet, on disk: which requests it accepted and how they ended.

One line when a request is accepted, one with its outcome before that is published, one when JetStream has
it. A line survives the death of the process (it is written to the file at once), and a torn last line is
ignored: what it would have said is settled like any other unfinished request. The file is emptied whenever
nothing is owed, and rewritten when it has grown.
"""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from tokenfleet.contracts.requests import Ended, Submitted, terminal_event_id
from tokenfleet.errors import ConfigurationError

log = structlog.get_logger(__name__)

COMPACT_BYTES = 4 << 20
"""The file is rewritten when it exceeds this and is twice as long as what it holds."""
RESTARTED = "ingress_restarted"


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the file; exactly one field is set."""

    accepted: Submitted | None = None
    ended: Ended | None = None
    settled: str | None = None
    """The request id whose outcome JetStream has acknowledged."""


_DECODER = msgspec.json.Decoder(Line)
_ENCODER = msgspec.json.Encoder()


class Journal:
    """The journal of one ingress. Appending costs one write to the page cache."""

    def __init__(self, path: Path) -> None:
        """Open and lock the file, and read what an earlier process left.

        Raises:
            ConfigurationError: another process uses it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock(path)
        self._open: dict[str, bytes] = {}
        """The line that matters of each unsettled request: its outcome if it has one."""
        self._bytes = self._compacted_bytes = 0
        self.left_over = unsettled(path.read_bytes().splitlines())
        for line in self.left_over:
            self._open[_request_id(line)] = _encode(line)
        self._compact()

    def _lock(self, path: Path) -> None:
        # On a file of its own, because the journal itself is replaced when it is compacted.
        self._lock_file = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"Another ingress uses {path.parent}. Give each its own TOKENFLEET_INGRESS_NAME "
                "(or TOKENFLEET_INGRESS_PORT)."
            ) from error

    @property
    def backlog(self) -> int:
        """Requests accepted whose outcome is not yet stored in JetStream."""
        return len(self._open)

    def accepted(self, submitted: Submitted) -> None:
        """A request was accepted. Its block hashes are not kept: nothing after a restart needs them."""
        request = msgspec.structs.replace(submitted.request, blocks=b"")
        line = _encode(Line(accepted=msgspec.structs.replace(submitted, request=request)))
        self._open[submitted.request_id] = line
        self._append(line)

    def ended(self, ended: Ended) -> None:
        """A request has its outcome, which is about to be published."""
        line = _encode(Line(ended=ended))
        self._open[ended.request_id] = line
        self._append(line)

    def settled(self, request_id: str) -> None:
        """JetStream has the outcome of a request."""
        if self._open.pop(request_id, None) is None:
            return
        if self._open and self._bytes < max(COMPACT_BYTES, 2 * self._compacted_bytes):
            self._append(_encode(Line(settled=request_id)))
        else:
            self._compact()

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock_file)

    def _append(self, line: bytes) -> None:
        self._bytes += self._write(self._file, line)

    def _write(self, file: int, data: bytes) -> int:
        written = os.write(file, data)
        if written < len(data):
            raise OSError(f"{self._path} took {written} of {len(data)} bytes; is the disk full?")
        return written

    def _compact(self) -> None:
        """Keep only what is owed. The old file stays until the new one is complete."""
        if not self._open:
            os.ftruncate(self._file, 0)
            self._bytes = self._compacted_bytes = 0
            return
        fresh = self._path.with_suffix(".new")
        file = os.open(fresh, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            written = self._write(file, b"".join(self._open.values()))
            os.rename(fresh, self._path)
        except OSError:
            os.close(file)
            raise
        self._bytes = self._compacted_bytes = written
        os.close(self._file)
        self._file = file


def unsettled(lines: Iterable[bytes]) -> list[Line]:
    """The last line of each request that was not settled, in the order of their acceptance."""
    open_: dict[str, Line] = {}
    for raw in lines:
        try:
            line = _DECODER.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            log.warning("unreadable line in the journal ignored", bytes=len(raw))
            continue
        if line.settled is not None:
            open_.pop(line.settled, None)
        elif line.ended is not None or line.accepted is not None:
            open_[_request_id(line)] = line
    return list(open_.values())


def outcome_of(line: Line, time_ns: int, time_scale: float) -> Ended:
    """The outcome an unsettled request has: the one recorded, else that this ingress lost it by restarting."""
    if line.ended is not None:
        return line.ended
    submitted = line.accepted
    assert submitted is not None
    request = submitted.request
    return Ended(
        event_id=terminal_event_id(submitted.request_id),
        request_id=submitted.request_id,
        attempt=submitted.attempt,
        tenant=submitted.tenant,
        pool=submitted.pool,
        site=submitted.site,
        time_ns=time_ns,
        outcome="failed",
        reason=RESTARTED,
        status=503,
        model=request.model,
        stream=request.stream,
        submitted_ns=submitted.time_ns,
        e2e_s=max(0, time_ns - submitted.time_ns) / 1e9 * time_scale,
        input_tokens=request.input_tokens,
        tokens_exact=False,
        client_request_id=request.client_request_id,
        time_scale=time_scale,
    )


def _request_id(line: Line) -> str:
    event = line.ended or line.accepted
    assert event is not None
    return event.request_id


def _encode(line: Line) -> bytes:
    return _ENCODER.encode(line) + b"\n"
