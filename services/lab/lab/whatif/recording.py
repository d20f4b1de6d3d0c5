"""The recorded events of a window, put together per request.

A request belongs to the window when it was submitted within it. Those submitted shortly before, and those submitted
before the last of the window's ended, are its company: they are run again too, so that the window's requests find the
engines and caches as they were, but they are not counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from lab.whatif.errors import WhatIfError
from tokenfleet.bus.codec import decode
from tokenfleet.contracts.requests import EVENT_TYPES, Ended, Retried, Routed, Submitted
from tokenfleet.contracts.situation import Situation
from tokenfleet.errors import ContractError

SITUATION = "situation"
REQUEST = "request"


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """From a moment (inclusive) to another (exclusive), Unix ns, and how long before it to begin."""

    from_ns: int
    to_ns: int
    warm_up_ns: int = 0

    @property
    def begin_ns(self) -> int:
        """Where its company begins."""
        return self.from_ns - self.warm_up_ns

    def holds(self, time_ns: int) -> bool:
        return self.from_ns <= time_ns < self.to_ns


class _Decided(msgspec.Struct, frozen=True):
    """Of a `routed` event what is needed here: its candidates are most of it."""

    request_id: str
    attempt: int
    time_ns: int


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One request that deciders were asked about."""

    submitted: Submitted
    """Its first attempt."""
    ended: Ended | None
    """None: how it ended is not recorded (yet)."""
    counted: bool
    """Whether it belongs to the window."""
    decided_ns: int | None = None
    """When its first attempt was routed."""

    @property
    def decision_s(self) -> float | None:
        """What deciding took, its time in SLOMax's queue not counted, in engine seconds; None if it was not routed."""
        if self.decided_ns is None or self.ended is None:
            return None
        took_s = (self.decided_ns - self.submitted.time_ns) / 1e9 * self.ended.time_scale
        return max(0.0, took_s - (self.ended.queue_wait_s or 0.0))


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """All that was recorded of a window."""

    window: Window
    requests: Sequence[Recorded]
    """In order of submission."""
    turned_away: Sequence[Ended]
    """Of the window, by their ingress itself (a tenant's limit, for one): no policy had a say."""
    situations: Sequence[Situation]
    """In order of time."""
    endings_only: int = 0
    """Requests of the window that were served and whose submission is not recorded."""
    retried: int = 0
    """Attempts of the window's requests that failed and were followed by another."""
    unreadable: int = 0
    """Messages that this version does not understand."""

    @property
    def counted(self) -> list[Recorded]:
        return [one for one in self.requests if one.counted]


@dataclass(slots=True)
class Recorder:
    """Takes the messages of a window in any order and any number of times."""

    window: Window
    _submitted: dict[str, Submitted] = field(default_factory=dict)
    _ended: dict[str, Ended] = field(default_factory=dict)
    _decided: dict[str, int] = field(default_factory=dict)
    _retried: dict[str, str] = field(default_factory=dict)
    """Request by event."""
    _situations: dict[tuple[str, int], Situation] = field(default_factory=dict)
    _open: dict[str, int] = field(default_factory=dict)
    """The window's requests without an end so far, and until when that may come."""
    _unreadable: int = 0

    def take(self, subject: str, data: bytes) -> None:
        """One message."""
        parts = subject.split(".")
        try:
            if parts[3:4] == [SITUATION]:
                situation = decode(data, Situation)
                self._situations[situation.site, situation.time_ns] = situation
            elif parts[3:4] == [REQUEST] and len(parts) > 5:
                self._take_event(parts[5], data)
        except ContractError:
            self._unreadable += 1

    def complete_by(self, time_ns: int) -> bool:
        """Whether nothing stored after this moment can belong to the window."""
        return time_ns > self.window.to_ns and all(last_ns < time_ns for last_ns in self._open.values())

    def _take_event(self, name: str, data: bytes) -> None:
        kind = EVENT_TYPES.get(name)
        if kind is Submitted:
            event = decode(data, Submitted)
            if event.time_ns < self.window.begin_ns:
                return
            known = self._submitted.get(event.request_id)
            if known is None or event.attempt < known.attempt:
                self._submitted[event.request_id] = event
            if self.window.holds(event.time_ns) and event.request_id not in self._ended:
                self._open[event.request_id] = event.request.deadline_ns
        elif kind is Ended:
            ended = decode(data, Ended)
            known_end = self._ended.get(ended.request_id)
            if ended.submitted_ns >= self.window.begin_ns and (
                known_end is None or known_end.outcome == "lost"
            ):
                self._ended[ended.request_id] = ended
                self._open.pop(ended.request_id, None)
        elif kind is Routed:
            decided = decode(data, _Decided)
            if decided.attempt == 1:
                self._decided.setdefault(decided.request_id, decided.time_ns)
        elif kind is Retried:
            retried = decode(data, Retried)
            self._retried[retried.event_id] = retried.request_id

    def recording(self) -> Recording:
        """What there is.

        Raises:
            WhatIfError: no request was submitted in the window.
        """
        window = self.window
        counted = {
            name: self._ended.get(name)
            for name, event in self._submitted.items()
            if window.holds(event.time_ns)
        }
        last_ns = max((ended.time_ns for ended in counted.values() if ended), default=window.to_ns)
        orphans = [
            ended
            for name, ended in self._ended.items()
            if name not in self._submitted and window.holds(ended.submitted_ns)
        ]
        turned_away = [ended for ended in orphans if ended.outcome == "rejected"]
        if not counted:
            raise WhatIfError(
                "No request was submitted in this window. Check --from and --to (events are kept for seven days; older "
                "ones are in files written by `tokenfleet audit export`, see --events)."
            )
        requests = [
            Recorded(
                submitted=event,
                ended=self._ended.get(name),
                counted=name in counted,
                decided_ns=self._decided.get(name),
            )
            for name, event in self._submitted.items()
            if name in counted or event.time_ns < max(last_ns, window.from_ns)
        ]
        return Recording(
            window=window,
            requests=sorted(requests, key=lambda one: (one.submitted.time_ns, one.submitted.request_id)),
            turned_away=sorted(turned_away, key=lambda ended: (ended.submitted_ns, ended.request_id)),
            situations=sorted(self._situations.values(), key=lambda one: one.time_ns),
            endings_only=len(orphans) - len(turned_away),
            retried=sum(name in counted for name in self._retried.values()),
            unreadable=self._unreadable,
        )


def record(window: Window, messages: Iterable[tuple[str, bytes]]) -> Recording:
    """What messages, `(subject, data)`, say of a window.

    Raises:
        WhatIfError: no request was submitted in it.
    """
    recorder = Recorder(window)
    for subject, data in messages:
        recorder.take(subject, data)
    return recorder.recording()
