"""The recorded events in files, one for each hour or day, so that they outlive the stream.

A file also has what was recorded of the fleet in its time (instances, policy, tenants; never a key), from a little
before: what a re-run under another policy needs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from goodput_accountant.audit.options import moment
from goodput_accountant.policy.chain import DAY_NS
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.errors import TokenFleetError
from tokenfleet.event_log import SUFFIX, LoggedEvent, LogWriter, Span

Period = Literal["hour", "day"]
PERIOD_NS: dict[Period, int] = {"hour": DAY_NS // 24, "day": DAY_NS}
NAME: dict[Period, str] = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d"}

SITUATION_BEFORE_NS = 120 * 10**9
"""A situation is said again each minute: so long before a file's begin there is one."""
LOOK_EVERY = 1_000

Progress = Callable[[str, float | None], None]


class ExportError(TokenFleetError):
    """There is nothing to export, or something is in the way."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    path: Path
    span: Span
    messages: int


async def export(
    bus: Bus,
    out: Path,
    from_ns: int | None,
    to_ns: int | None,
    period: Period,
    *,
    replace: bool,
    progress: Progress,
) -> list[Exported]:
    """Write what the stream took within a window, up to now.

    Args:
        bus: the operator's connection.
        out: a file (its name ends in .jsonl.gz), or the folder for one file per period.
        from_ns: from here on, by when the stream took it; None: all it holds.
        to_ns: until here; None: until now.
        period: of one file.
        replace: whether files that exist are written anew.
        progress: told the file, and how much is done.

    Raises:
        ExportError: nothing is there, or a file exists.
        EventLogError: a file cannot be written.
        UnavailableError: NATS went away.
    """
    whole = await _whole(bus, from_ns, to_ns)
    files = list(_files(out, whole, period))
    _make_room(out, [path for path, _ in files], replace)
    return [await _write(bus, path, span, whole, progress) for path, span in files]


def _make_room(out: Path, paths: Sequence[Path], replace: bool) -> None:
    existing = [str(path) for path in paths if path.exists()]
    if existing and not replace:
        raise ExportError(
            f"{', '.join(existing)} exist{'s' if len(existing) == 1 else ''} already, and may hold what the stream has "
            "lost since. Name another --out, a narrower window, or --replace to write anew."
        )
    folder = out.parent if out.name.endswith(SUFFIX) else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{folder} cannot be made a folder: {error.strerror}.") from error


async def _whole(bus: Bus, from_ns: int | None, to_ns: int | None) -> Span:
    state = await bus.stream_state(subjects.STREAM_REQUESTS)
    if not state.messages:
        raise ExportError("The stream of requests is empty: there is nothing to export.")
    begin_ns = max(from_ns or 0, state.first_ns)
    end_ns = min(to_ns if to_ns is not None else state.last_ns + 1, state.last_ns + 1)
    if begin_ns >= end_ns:
        raise ExportError(
            f"The stream holds nothing of that window: it has events from {moment(state.first_ns)} to "
            f"{moment(state.last_ns)}."
        )
    return Span(from_ns=begin_ns, to_ns=end_ns)


def _files(out: Path, whole: Span, period: Period) -> Iterator[tuple[Path, Span]]:
    if out.name.endswith(SUFFIX):
        yield out, whole
        return
    length_ns = PERIOD_NS[period]
    for start_ns in range(whole.from_ns // length_ns * length_ns, whole.to_ns, length_ns):
        name = datetime.fromtimestamp(start_ns // 10**9, UTC).strftime(NAME[period])
        span = Span(from_ns=max(start_ns, whole.from_ns), to_ns=min(start_ns + length_ns, whole.to_ns))
        yield out / f"events-{name}{SUFFIX}", span


async def _write(bus: Bus, path: Path, span: Span, whole: Span, progress: Progress) -> Exported:
    def done(time_ns: int) -> None:
        progress(path.name, (time_ns - whole.from_ns) / (whole.to_ns - whole.from_ns))

    done(span.from_ns)
    with LogWriter(path, span) as writer:
        before_ns = span.from_ns - SITUATION_BEFORE_NS
        await _copy(bus, writer, subjects.STREAM_FLEET, subjects.ALL_SITUATIONS, before_ns, span.to_ns)
        await _copy(
            bus, writer, subjects.STREAM_REQUESTS, subjects.ALL_REQUESTS, span.from_ns, span.to_ns, done
        )
    return Exported(path=path, span=span, messages=writer.messages)


async def _copy(
    bus: Bus,
    writer: LogWriter,
    stream: str,
    subject: str,
    from_ns: int,
    to_ns: int,
    done: Callable[[int], None] = lambda time_ns: None,
) -> None:
    read = 0
    async with aclosing(bus.read_stored(stream, [subject], from_ns)) as stored_events:
        async for stored in stored_events:
            if stored.time_ns >= to_ns:
                break
            if stored.time_ns < from_ns:  # the server looks at microseconds
                continue
            writer.add(LoggedEvent(stored.subject, stored.time_ns, stored.sequence, stored.data))
            read += 1
            if read % LOOK_EVERY == 0:
                done(stored.time_ns)
