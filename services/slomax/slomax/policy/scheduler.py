"""The queues of one pool: takes requests in, and says which of them start, wait or are refused. Pure.

The live service and the lab both drive this object; times are monotonic engine seconds. Whoever calls it credits a
start to the load view before asking for the next one, so that two requests never take the same room.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slomax.policy.admission import (
    NO_READY_INSTANCE,
    Keep,
    Margins,
    Refuse,
    Start,
    Verdict,
    hopeless,
    is_late,
    judge,
    too_late_to_queue,
    unservable,
)
from slomax.policy.classify import BATCH, promised_s
from slomax.policy.due import DueFirst
from slomax.policy.entry import Entry
from slomax.policy.fair_queue import FairQueue
from slomax.policy.late import Late
from slomax.policy.places import OVERLAP, Place, place_of
from slomax.policy.prospects import START_WITHIN_S, least_wait_s, prospects
from slomax.policy.room import Room
from slomax.policy.shares import order
from tokenfleet.contracts.policy import ClassShare, Policy
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, OutputLengths

LOOK_EVERY_S = 0.05
"""How often the queues are looked through. A prompt of a thousand tokens takes the reference engine 0.1 s."""
LOOKED_AT = 12
"""Requests of a class judged at a time, in the order in which they would be served."""
DESERTED_S = 10.0
"""How long those that wait stay when their pool's last instance has gone: it may have missed a heartbeat only."""


@dataclass(frozen=True, slots=True)
class Released:
    """A request that waited, and what becomes of it."""

    entry: Entry
    verdict: Start | Refuse


class PoolScheduler:
    """One pool.

    Args:
        load: what each instance is busy with.
        lengths: how long answers are.
    """

    def __init__(self, load: LoadView, lengths: OutputLengths) -> None:
        self._load = load
        self._lengths = lengths
        self.queues: dict[str, FairQueue] = defaultdict(FairQueue)
        self._room = Room(load, lengths)
        self._due_first = DueFirst()
        self._late = Late()
        self._started: dict[str, Entry] = {}
        self._class_of: dict[str, str] = {}
        self._next_look_s = 0.0
        self._deserted_s: float | None = None
        """Since when the pool has no instance."""

    def __len__(self) -> int:
        return len(self._class_of)

    # -- what happens to requests

    def start_at_once(
        self, entry: Entry, instances: Sequence[InstanceView], reason: str, now_s: float
    ) -> Verdict:
        """Start a request whatever else waits, unless no instance could ever take it."""
        never = unservable(entry.request, instances)
        if never is not None:
            return never
        ahead = prospects(
            entry.tokens, _fitting(entry, instances) or instances, self._load, self._lengths, now_s
        )
        best = int(np.argmin(ahead.ttft_s))
        entry.own_prefill_s = float(ahead.own_prefill_s[best])
        self._begin(entry, now_s)
        ttft_s = now_s - entry.arrived_s + float(ahead.ttft_s[best])
        return Start(ahead.instances[best].record.instance, ttft_s, reason)

    def submit(
        self,
        entry: Entry,
        instances: Sequence[InstanceView],
        policy: Policy,
        margins: Margins,
        shares: Mapping[str, ClassShare],
        now_s: float,
    ) -> Verdict:
        """A request arrived.

        Args:
            entry: the request; what it could be promised is worked out here.
            instances: the pool's ready instances.
            policy: in force.
            margins: as feedback has them.
            shares: floors and ceilings by class, as feedback has them.
            now_s: engine seconds.
        """
        never = unservable(entry.request, instances)
        if never is not None:
            return never
        fitting = _fitting(entry, instances)
        if not fitting:
            return Refuse(503, "no_usable_instance", "Every instance that could take it has failed it.", 1.0)
        ahead = self._room.ahead(entry, fitting, now_s, others_wait=self._anybody_waits())
        best = int(np.argmin(ahead.ttft_s))
        entry.own_prefill_s = float(ahead.own_prefill_s[best])
        entry.promised_s = promised_s(entry, self._lengths)
        place = place_of(entry, self.queues, len(fitting), float(ahead.wait_s[best]))
        late = too_late_to_queue(entry, place.expected_start_s + now_s - entry.arrived_s, margins)
        verdict: Verdict = late or Keep("behind_others")
        yields = entry.request_class == BATCH and (
            self._others_wait(shares, now_s)
            or (
                entry.tokens > policy.long_context_tokens
                and not self._room.long_batch_fits(instances, policy, now_s)
            )
        )
        if late is None and not place.position and not yields:
            verdict = judge(entry, ahead, self._room.allowed(entry, ahead, policy), margins, now_s)
        if isinstance(verdict, Refuse):
            verdict = self._late.instead(entry, verdict, policy, len(fitting), now_s)
        if isinstance(verdict, Keep):
            verdict = self._full(entry, policy, margins, place) or verdict
        if isinstance(verdict, Keep):
            self._wait(entry)
        elif isinstance(verdict, Start):
            self._begin(entry, now_s)
        return verdict

    def release(
        self,
        instances: Sequence[InstanceView],
        policy: Policy,
        margins: Margins,
        shares: Mapping[str, ClassShare],
        now_s: float,
    ) -> Iterator[Released]:
        """Those whose wait is over, one by one; the caller routes each before it asks for the next."""
        if not self._class_of or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        yield from self._expired(now_s)
        if not instances:
            yield from self._deserted(now_s)
            return
        self._deserted_s = None
        for request_class in self._class_order(shares, now_s):
            yield from self._release_of(request_class, instances, policy, margins, now_s)

    def remove(self, request_id: str) -> Entry | None:
        """Its client left, or its time is over: it leaves at once and nobody is charged. None: it did not wait."""
        self._room.claims.release(request_id)
        self._late.gone(request_id)
        request_class = self._class_of.pop(request_id, None)
        return self.queues[request_class].remove(request_id) if request_class is not None else None

    def ended(self, request_id: str, *, reused_tokens: int, output_tokens: int) -> None:
        """A request is over: its tenant is charged for what it was served beyond, or short of, what was assumed."""
        entry = self._started.pop(request_id, None)
        if entry is not None:
            self.queues[entry.request_class].charge(entry, -min(reused_tokens, entry.tokens), output_tokens)
        else:
            self.remove(request_id)

    def forget(self, request_id: str) -> None:
        """Its end was never reported."""
        self._started.pop(request_id, None)

    def kept_free(self, entry: Entry) -> tuple[str, ...]:
        """Instances where a request should not go now, though they look free."""
        return self._room.claims.others(entry)

    def place_of(self, request_id: str, instances: int) -> Place | None:
        """Where a waiting request stands; None when it does not wait."""
        request_class = self._class_of.get(request_id)
        if request_class is None:
            return None
        return place_of(self.queues[request_class].get(request_id), self.queues, max(instances, 1))

    def places(self, instances: int) -> Iterator[tuple[str, Place]]:
        """Where all that wait stand, each in its class."""
        for queue in self.queues.values():
            before_s = 0.0
            for position, entry in enumerate(queue.in_order()):
                yield entry.request_id, Place(position, before_s / max(instances, 1) / OVERLAP)
                before_s += entry.own_prefill_s

    def expected_start_s(self, request_class: str, instances: int) -> float:
        """When a request of this class that arrives now could begin."""
        work_s = sum(entry.own_prefill_s for entry in self.queues[request_class])
        return work_s / max(instances, 1) / OVERLAP

    def forget_idle(self, now_s: float) -> None:
        """Drop what is kept of tenants that have nothing here."""
        self._room.forget_idle(now_s)
        running: dict[str, set[str]] = defaultdict(set)
        for entry in self._started.values():
            running[entry.request_class].add(entry.tenant)
        for request_class, queue in self.queues.items():
            queue.forget_idle(running[request_class])

    # -- how it is decided

    def _release_of(
        self,
        request_class: str,
        instances: Sequence[InstanceView],
        policy: Policy,
        margins: Margins,
        now_s: float,
    ) -> Iterator[Released]:
        queue = self.queues[request_class]
        least_s = least_wait_s(instances, self._load, now_s)
        if least_s <= START_WITHIN_S:
            others_wait = False
            for entry in self._next_of(request_class, instances, policy, now_s):
                if others_wait and self._room.floods(entry, len(instances), now_s):
                    continue
                fitting = _fitting(entry, instances)
                if not fitting:
                    continue
                ahead = self._room.ahead(entry, fitting, now_s, others_wait=self._anybody_waits())
                verdict = judge(entry, ahead, self._room.allowed(entry, ahead, policy), margins, now_s)
                if isinstance(verdict, Keep):
                    others_wait = others_wait or not entry.floods
                    self._room.claims.consider(entry, ahead, len(fitting), now_s)
                else:
                    yield from self._decided(entry, verdict, policy, len(instances), now_s)
            least_s = least_wait_s(instances, self._load, now_s)
        for entry in queue.pressing(now_s + least_s):
            refusal = hopeless(entry, least_s, now_s)
            # It may have left while the ones before it were answered.
            if refusal is not None and entry.request_id in self._class_of:
                yield from self._decided(entry, refusal, policy, len(instances), now_s)

    def _next_of(
        self, request_class: str, instances: Sequence[InstanceView], policy: Policy, now_s: float
    ) -> Iterator[Entry]:
        queue = self.queues[request_class]
        if request_class != BATCH:
            return queue.in_order(LOOKED_AT)
        first_before_s = self._due_first.before_s(queue, self._room.work.per_s(BATCH, now_s), now_s)
        room = self._room.long_batch_fits(instances, policy, now_s)

        def wanted(entry: Entry) -> bool:
            return room or entry.tokens <= policy.long_context_tokens or is_late(entry, now_s)

        return queue.in_order(LOOKED_AT, first_before_s, wanted)

    def _decided(
        self, entry: Entry, verdict: Start | Refuse, policy: Policy, instances: int, now_s: float
    ) -> Iterator[Released]:
        """Its wait is over, unless its tenant wants it served late rather than refused."""
        request_class = entry.request_class
        outcome: Verdict = verdict
        if isinstance(verdict, Refuse):
            outcome = self._late.instead(entry, verdict, policy, instances, now_s)
        if isinstance(outcome, Keep):
            self._requeue(entry, request_class)
            return
        self.remove(entry.request_id)
        if isinstance(outcome, Start):
            self._begin(entry, now_s)
        yield Released(entry, outcome)

    def _anybody_waits(self) -> bool:
        """Besides batch, which always may."""
        return any(len(queue) for name, queue in self.queues.items() if name != BATCH)

    def _class_order(self, shares: Mapping[str, ClassShare], now_s: float) -> list[str]:
        waiting = {name: queue.earliest_start_s() for name, queue in self.queues.items() if len(queue)}
        ranked = order(waiting, self._room.work, shares, now_s)
        if BATCH in waiting and self._others_wait(shares, now_s):
            ranked.remove(BATCH)
        return ranked

    def _others_wait(self, shares: Mapping[str, ClassShare], now_s: float) -> bool:
        """Whether batch has to stand back: others wait because the pool is full, and batch has its floor."""
        if not self._anybody_waits():
            return False
        return self._room.work.share(BATCH, now_s) >= shares.get(BATCH, ClassShare()).floor

    def _full(self, entry: Entry, policy: Policy, margins: Margins, place: Place) -> Refuse | None:
        queue, limits = self.queues[entry.request_class], policy.queue
        full = len(queue) + 1 > margins.queue_share * limits.requests
        if not full and queue.input_tokens + entry.tokens <= margins.queue_share * limits.input_tokens:
            return None
        message = f"{len(queue)} requests of this class wait already. Try again later."
        return Refuse(429, "queue_full", message, max(1.0, round(place.expected_start_s)))

    def _deserted(self, now_s: float) -> Iterator[Released]:
        """Nothing serves the model: those that hurry are told what one that arrives now is, unless it is back soon."""
        if self._deserted_s is None:
            self._deserted_s = now_s
        if now_s - self._deserted_s < DESERTED_S:
            return
        for entry in [one for queue in self.queues.values() for one in queue if not one.patient]:
            self.remove(entry.request_id)
            yield Released(entry, NO_READY_INSTANCE)

    def _expired(self, now_s: float) -> Iterator[Released]:
        for queue in list(self.queues.values()):
            for entry in queue.expired(now_s):
                self.remove(entry.request_id)
                yield Released(entry, _expiry(entry, now_s))

    def _begin(self, entry: Entry, now_s: float) -> None:
        self._started[entry.request_id] = entry
        self._room.started(entry, now_s)
        self.queues[entry.request_class].charge(entry, entry.tokens, 0)

    def _requeue(self, entry: Entry, from_class: str) -> None:
        """It gave up its objective: its place is among those that have none, or in the class below."""
        self.queues[from_class].remove(entry.request_id)
        self._wait(entry)

    def _wait(self, entry: Entry) -> None:
        self.queues[entry.request_class].add(entry)
        self._class_of[entry.request_id] = entry.request_class
        self._late.waits(entry)


def _fitting(entry: Entry, instances: Sequence[InstanceView]) -> list[InstanceView]:
    excluded = entry.request.excluded_instances
    return [
        view
        for view in instances
        if entry.tokens <= view.record.profile.longest_prompt_tokens and view.record.instance not in excluded
    ]


def _expiry(entry: Entry, now_s: float) -> Refuse:
    waited_s = now_s - entry.arrived_s
    if entry.due_s is not None and entry.due_s <= now_s:
        return Refuse(504, "deadline", f"The deadline passed after {waited_s:.0f} s in the queue.")
    message = f"It waited {waited_s:.1f} s, as long as it may. Try again later."
    return Refuse(429, "queue_ttl", message, retry_after_s=max(1.0, round(waited_s)))
