"""Telemetry and KV events of the engines of a simulation: read at intervals, heard later."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from lab.sim.cluster import Cluster, Instance
from tokenfleet.contracts.fleet import InstanceState

READING_GROUPS = 10
"""Instances are read in this many groups, spread over the interval: one timer serves a group."""

Reading = tuple[InstanceState, list[tuple[Sequence[int], Sequence[int]]]]
"""How an instance was, and what its cache stored and removed since the last reading."""


class Samples:
    """What was seen of all instances when their telemetry was read, in buckets of time."""

    BUCKET_S = 5.0

    def __init__(self) -> None:
        self.waiting: dict[int, int] = defaultdict(int)
        self.readings: dict[int, int] = defaultdict(int)

    def add(self, time_s: float, waiting: int, readings: int) -> None:
        """So many instances were read, with so many requests waiting at all of them together."""
        bucket = int(time_s / self.BUCKET_S)
        self.waiting[bucket] += waiting
        self.readings[bucket] += readings

    def mean_waiting(self) -> list[tuple[float, float]]:
        """`(seconds, mean waiting requests per instance)` in order of time."""
        return [
            (bucket * self.BUCKET_S, self.waiting[bucket] / count)
            for bucket, count in sorted(self.readings.items())
        ]


class Telemetry:
    """Reads groups of instances in turn; the readings of a group travel equally long.

    Args:
        cluster: says how often and how late.
        instances: to be read.
        set_timer: calls a function with an argument at a time.
        advance: brings an instance up to the present.
        hear: told the readings of a group when they arrive.
    """

    def __init__(
        self,
        cluster: Cluster,
        instances: Sequence[Instance],
        set_timer: Callable[[float, Callable[[Any], None], Any], None],
        advance: Callable[[Instance], None],
        hear: Callable[[list[Reading]], None],
    ) -> None:
        self.samples = Samples()
        self._interval_s = cluster.telemetry_interval_s
        self._delay_s = cluster.telemetry_delay_s
        self._instances = instances
        self._set_timer = set_timer
        self._advance = advance
        self._hear = hear

    def start(self) -> None:
        """Set the first timer of each group."""
        groups = min(READING_GROUPS, len(self._instances))
        least_s, most_s = self._delay_s
        for group in range(groups):
            delay_s = least_s + (most_s - least_s) * (group / (groups - 1) if groups > 1 else 0.0)
            first_s = self._interval_s * group / groups
            self._set_timer(first_s, self._read, (self._instances[group::groups], delay_s, first_s))

    def _read(self, group: tuple[Sequence[Instance], float, float]) -> None:
        members, delay_s, now_s = group
        readings: list[Reading] = []
        waiting = 0
        for instance in members:
            if instance.alive:
                self._advance(instance)
            state = instance.read(now_s)
            waiting += state.waiting or 0
            readings.append((state, instance.take_kv_changes() if instance.alive else []))
        self.samples.add(now_s, waiting, len(members))
        if delay_s:
            self._set_timer(now_s + delay_s, self._hear, readings)
        else:
            self._hear(readings)
        next_s = now_s + self._interval_s
        self._set_timer(next_s, self._read, (members, delay_s, next_s))
