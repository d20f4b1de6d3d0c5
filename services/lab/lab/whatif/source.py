"""Where recorded events come from: the streams, or files exported from them."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from lab.whatif.recording import Recorder, Recording, Window
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.event_log import read_log
from tokenfleet.settings import Settings

Progress = Callable[[float], None]
"""Told how much is done, 0 to 1."""

CLOCK_MARGIN_NS = 5 * 10**9
"""By how much the clocks of ingress and of the NATS server may differ."""
LOOK_BACK_NS = 5 * 60 * 10**9
"""A situation is said at least once a minute, unless the collector was away."""
LOOK_EVERY = 1_000
"""Messages."""

FILTERS = (
    subjects.ALL_SUBMITTED,
    f"{subjects.PREFIX}.*.request.*.routed.*",
    f"{subjects.PREFIX}.*.request.*.retried",
    *subjects.TERMINAL_SUBJECTS,
)


async def read_streams(settings: Settings, window: Window, progress: Progress) -> Recording:
    """What the streams hold of a window.

    Raises:
        UnavailableError: NATS cannot be reached.
        WhatIfError: no request was submitted in the window.
    """
    recorder = Recorder(window)
    bus = await Bus.connect(settings, "whatif")
    try:
        since_ns = window.begin_ns - LOOK_BACK_NS
        situations = bus.read_stored(subjects.STREAM_FLEET, [subjects.ALL_SITUATIONS], since_ns)
        async for stored in situations:
            recorder.take(stored.subject, stored.data)
        since_ns = window.begin_ns - CLOCK_MARGIN_NS
        async with aclosing(bus.read_stored(subjects.STREAM_REQUESTS, FILTERS, since_ns)) as events:
            read = 0
            async for stored in events:
                recorder.take(stored.subject, stored.data)
                read += 1
                if read % LOOK_EVERY == 0:
                    progress(read / (read + stored.left))
                    if recorder.complete_by(stored.time_ns - CLOCK_MARGIN_NS):
                        break
    finally:
        await bus.drain()
    return recorder.recording()


def read_files(paths: Sequence[Path], window: Window, progress: Progress) -> Recording:
    """What exported files hold of a window.

    Raises:
        EventLogError: a file is not such a file.
        WhatIfError: no request was submitted in the window.
    """
    recorder = Recorder(window)
    for done, path in enumerate(paths):
        progress(done / len(paths))
        for logged in read_log(path):
            recorder.take(logged.subject, logged.data)
    return recorder.recording()
