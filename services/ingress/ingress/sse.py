"""Server-sent events as they pass: counted, not parsed, and relayed byte for byte.

Only three things are looked into: the events up to the first token, the last few events (for the usage and
how the stream ended), and an event that seems to be the usage the client did not ask for, which is left out.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ingress.answers import Reading, read
from ingress.policy.happenings import Usage

TAIL_BYTES = 16 << 10
"""How much of the stream's end is kept to be read: far more than its last events take."""
MAX_EVENT_BYTES = 1 << 20
"""An event longer than this is passed on in pieces, unexamined."""
DONE = b"[DONE]"

_EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n)", re.DOTALL)
# Inside a JSON string the quotes would be escaped, so this is a key.
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended, read from its last events."""

    usage: Usage | None
    finish_reason: str | None
    whole: bool
    """It reached its `[DONE]` mark, or at least a finish reason."""
    error: bool


class EventRelay:
    """Takes a stream in chunks of any size and gives back what the client is to get."""

    def __init__(self, *, strip_usage: bool) -> None:
        self._strip_usage = strip_usage
        self._partial = b""
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.events = 0
        self.has_token = False
        """Whether any event so far carried a token."""

    def feed(self, chunk: bytes) -> bytes:
        """The complete events in what has arrived; the rest waits for its end."""
        data = self._partial + chunk if self._partial else chunk
        end = _last_end(data)
        if len(data) - end > MAX_EVENT_BYTES:
            end = len(data)
        self._partial = data[end:]
        return self._pass(data[:end]) if end else b""

    def finish(self) -> bytes:
        """What is left when the stream has ended without a final blank line."""
        rest, self._partial = self._partial, b""
        return self._pass(rest) if rest else b""

    def end(self) -> StreamEnd:
        """Read the last events; call it when the stream is over."""
        usage: Usage | None = None
        finish_reason: str | None = None
        done = error = False
        for data in reversed([_data_of(event) for event in _split(b"".join(self._tail))]):
            if data == DONE:
                done = True
                continue
            reading = read(data)
            usage = usage or reading.usage
            finish_reason = finish_reason or reading.finish_reason
            error = error or reading.error
            if usage and finish_reason:
                break
        return StreamEnd(usage, finish_reason, done or finish_reason is not None, error)

    def _pass(self, events: bytes) -> bytes:
        self.events += events.count(b"\n\n") or events.count(b"\r\n\r\n")
        self._tail.append(events)
        self._tail_bytes += len(events)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())
        if not self.has_token:
            self.has_token = any(_read(event).has_token for event in _split(events))
        if self._strip_usage and b'"usage"' in events and _NO_CHOICES.search(events):
            return b"".join(event for event in _split(events) if not _read(event).usage_only)
        return events


def _last_end(data: bytes) -> int:
    """Where the last complete event ends; 0 when there is none."""
    if data.endswith(b"\n\n"):
        return len(data)
    ends = [at + len(blank) for blank in (b"\n\n", b"\r\n\r\n") if (at := data.rfind(blank)) >= 0]
    return max(ends, default=0)


def _split(events: bytes) -> Iterator[bytes]:
    """The events one by one, each with its blank line; joined they are the input."""
    end = 0
    for match in _EVENT.finditer(events):
        end = match.end()
        yield match.group()
    if end < len(events):
        yield events[end:]


def _data_of(event: bytes) -> bytes:
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def _read(event: bytes) -> Reading:
    return read(_data_of(event))
