"""The one clock. Policies never import it: they are given numbers of seconds.

A fleet of emulated engines can run faster than real time (`time_scale` 5: five engine seconds pass in one
wall second). Durations that belong to requests and engines (TTFT, deadlines, objectives) are in engine
seconds; durations that belong to this machine (liveness, lease renewal, back-off) are in wall seconds.
With real engines the scale is 1 and the two are the same.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What services need from time; tests pass a fake."""

    time_scale: float

    def now_s(self) -> float:
        """Monotonic engine seconds."""
        ...

    def wall_s(self) -> float:
        """Monotonic wall seconds."""
        ...

    def unix_ns(self) -> int:
        """Wall-clock time of an event, in nanoseconds since 1970."""
        ...

    async def sleep(self, engine_seconds: float) -> None:
        """Sleep for a duration in engine seconds."""
        ...


class SystemClock:
    """The machine's clock, with engine seconds running `time_scale` times as fast as wall seconds."""

    def __init__(self, time_scale: float = 1.0) -> None:
        if not time_scale > 0:
            raise ValueError(f"time_scale must be positive, not {time_scale}")
        self.time_scale = time_scale

    def now_s(self) -> float:
        return time.monotonic() * self.time_scale

    def wall_s(self) -> float:
        return time.monotonic()

    def unix_ns(self) -> int:
        return time.time_ns()

    async def sleep(self, engine_seconds: float) -> None:
        await asyncio.sleep(engine_seconds / self.time_scale)
