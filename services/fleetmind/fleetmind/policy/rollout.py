"""Which version of a model a request gets where several are served: weights, draining, warm-up, roll back. Pure.

Times are monotonic wall seconds.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tokenfleet.contracts.policy import Rollout

Key = TypeVar("Key", str, tuple[str, str])
FIRST_SHARE = 0.05
"""Of its weight, what a version that has just appeared begins with."""
WINDOW = 200
"""Requests of a version after which older ones count half."""
FEWEST = 20
"""Requests of a version before it is judged."""
FAILED_SHARE = 0.2
"""A version is rolled back when more of its requests fail than this,"""
TIMES_WORSE = 2.0
"""and that many times as many as of the others."""


@dataclass(slots=True)
class _Record:
    seen_s: float
    requests: float = 0.0
    failed: float = 0.0


@dataclass(slots=True)
class Versions:
    """The versions of one model, as one FleetMind replica has seen them."""

    _known: dict[str, _Record] = field(default_factory=dict[str, _Record])
    _rolled_back: dict[str, float] = field(default_factory=dict[str, float])
    """By version, the weight it had then."""
    _begun_s: float | None = None

    def ready(self, versions: Collection[str], now_s: float) -> None:
        """These have ready instances somewhere. One that comes back after it was gone is new."""
        first = self._begun_s is None
        if self._begun_s is None:
            self._begun_s = now_s
        for gone in [version for version in self._known if version not in versions]:
            del self._known[gone]
        for version in versions:
            if version not in self._known:
                # What is there when this process starts is not new.
                self._known[version] = _Record(float("-inf") if first else now_s)

    def weights(self, rollout: Rollout, now_s: float) -> dict[str, float]:
        """What each version weighs now, for requests that name none."""
        self._forget_changed(rollout)
        weights: dict[str, float] = {}
        for version, weight in rollout.weights.items():
            record = self._known.get(version)
            if record is None or version in rollout.drained or version in self._rolled_back:
                continue
            warm = 1.0
            if rollout.warm_up_s > 0:
                warm = min(1.0, FIRST_SHARE + (1 - FIRST_SHARE) * (now_s - record.seen_s) / rollout.warm_up_s)
            if weight > 0:
                weights[version] = weight * warm
        return weights

    def ended(self, version: str, *, failed: bool, rollout: Rollout) -> str | None:
        """A request of a version is over. Returns why the version is rolled back, if that is decided now."""
        record = self._known.get(version)
        if record is None:
            return None
        if record.requests >= WINDOW:
            record.requests, record.failed = record.requests / 2, record.failed / 2
        record.requests += 1
        record.failed += failed
        weight = rollout.weights.get(version, 0.0)
        if not (failed and rollout.roll_back and weight) or version in self._rolled_back:
            return None
        return self._judge(version, record, weight)

    def rolled_back(self) -> list[str]:
        """Versions that take nothing until their weight is changed."""
        return sorted(self._rolled_back)

    def _judge(self, version: str, record: _Record, weight: float) -> str | None:
        share = record.failed / record.requests
        others = [one for name, one in self._known.items() if name != version and one.requests]
        requests = sum(one.requests for one in others)
        if record.requests < FEWEST or share <= FAILED_SHARE or requests < FEWEST:
            return None
        usual = sum(one.failed for one in others) / requests
        if share <= TIMES_WORSE * usual:
            return None
        self._rolled_back[version] = weight
        return f"{share:.0%} of its last requests failed, {usual:.0%} of the other versions'"

    def _forget_changed(self, rollout: Rollout) -> None:
        for version, weight in list(self._rolled_back.items()):
            if rollout.weights.get(version, 0.0) != weight:
                del self._rolled_back[version]


def drawn(weights: Mapping[Key, float], draw: float) -> Key | None:
    """One of some, by weight; the same draw gives the same one while weights stay. None: none weighs anything.

    Args:
        weights: of each.
        draw: uniform in [0, 1).
    """
    left = draw * sum(weights.values())
    chosen = None
    for key in sorted(weights):
        if weights[key] <= 0:
            continue
        chosen = key
        left -= weights[key]
        if left < 0:
            break
    return chosen
