"""The queues of one pool: takes requests in, and says which of them start, wait or are refused. Pure.

The live service and the lab both drive this object; times are monotonic engine seconds. Whoever calls it credits a
start to the load view before asking for the next one, so that two requests never take the same room.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slomax.policy.admission import (
    Keep,
    Margins,
    Refuse,
    Start,
    Verdict,
    hopeless,
    is_late,
    judge,
    longest_prompt_tokens,
    too_late_to_queue,
    unservable,
)
from slomax.policy.claims import Claims
from slomax.policy.classify import BATCH, INTERACTIVE, LONG_CONTEXT, degrade, promised_s
from slomax.policy.due import DueFirst
from slomax.policy.entry import Entry
from slomax.policy.fair_queue import FairQueue
from slomax.policy.prospects import START_WITHIN_S, Prospects, least_wait_s, prospects
from slomax.policy.shares import Work, order
from tokenfleet.contracts.policy import ClassShare, Policy
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, OutputLengths

LOOK_EVERY_S = 0.05
"""How often the queues are looked through. A prompt of a thousand tokens takes the reference engine 0.1 s."""
LOOKED_AT = 12
"""Requests of a class judged at a time, in the order in which they would be served."""
OVERLAP = 3.0
"""Prefill seconds that a pool's instance gets through in a second of queueing, as estimates of it count them: those
ahead wait for different moments of different instances. Fitted in the lab (overload at 1.8x): at 1 it refused 7 % of
the requests, at 1.5 1 %, at 3 next to none, and more of all that were offered met their objective each time."""
HEADROOM_TOKENS = 32_000
"""Work without haste is judged as if its prompt were so much longer: the slack of those that decode is left to the
interactive prompt that may come next."""
FORESEEN_AT_MOST = 0.7
"""And as if, for as long as those decode, prompts of the other classes came on as in the last half minute, up to this
share of the time: a token each 0.1 s leaves room for only so much prefill, and batch takes what the others will not
need."""
LONG_BATCH_SHARE = 0.625
"""Of the instances: while so many have a long prompt before them, no more long ones without haste are started, until
they are late. The next long prompt that is promised something finds an instance that begins with it soon."""
NOBODY_ELSE_SHARE = 0.01
"""Of the pool's time: where the other classes' prompts took less lately, batch has all instances."""
BATCH_KV_RESERVES = 4.0
"""Times the reserve that work without haste leaves free: what interactive requests arrive with in a minute or so."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands in its queue."""

    position: int
    """Requests before it."""
    expected_start_s: float
    """From now."""


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
        self._work = Work()
        self._claims = Claims()
        self._due_first = DueFirst()
        self._started: dict[str, Entry] = {}
        self._class_of: dict[str, str] = {}
        self._next_look_s = 0.0

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
        ahead = self._ahead(entry, fitting, now_s)
        best = int(np.argmin(ahead.ttft_s))
        entry.own_prefill_s = float(ahead.own_prefill_s[best])
        entry.promised_s = promised_s(entry, self._lengths)
        place = self._place(entry, len(fitting), float(ahead.wait_s[best]))
        late = too_late_to_queue(entry, place.expected_start_s + now_s - entry.arrived_s, margins)
        verdict: Verdict = late or Keep("behind_others")
        yields = entry.request_class == BATCH and (
            self._others_wait(shares, now_s)
            or (
                entry.tokens > policy.long_context_tokens
                and not self._long_batch_fits(instances, policy, now_s)
            )
        )
        if late is None and not place.position and not yields:
            verdict = self._judge(entry, ahead, policy, margins, now_s)
        if isinstance(verdict, Refuse):
            verdict = _instead(entry, verdict, policy)
        if isinstance(verdict, Keep):
            verdict = self._full(entry, policy, margins, place) or verdict
        if isinstance(verdict, Keep):
            self.queues[entry.request_class].add(entry)
            self._class_of[entry.request_id] = entry.request_class
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
            return  # They wait: an instance may be back before their time is over.
        for request_class in self._class_order(shares, now_s):
            yield from self._release_of(request_class, instances, policy, margins, now_s)

    def remove(self, request_id: str) -> Entry | None:
        """Its client left, or its time is over: it leaves at once and nobody is charged. None: it did not wait."""
        self._claims.release(request_id)
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
        return self._claims.others(entry)

    def place_of(self, request_id: str, instances: int) -> Place | None:
        """Where a waiting request stands; None when it does not wait."""
        request_class = self._class_of.get(request_id)
        if request_class is None:
            return None
        return self._place(self.queues[request_class].get(request_id), max(instances, 1), 0.0)

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

    def forget_idle(self) -> None:
        """Drop what is kept of tenants that have nothing here."""
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
            for entry in self._next_of(request_class, instances, policy, now_s):
                fitting = _fitting(entry, instances)
                if not fitting:
                    continue
                ahead = self._ahead(entry, fitting, now_s)
                verdict = self._judge(entry, ahead, policy, margins, now_s)
                if isinstance(verdict, Keep):
                    self._claims.consider(entry, ahead, len(fitting), now_s)
                else:
                    yield from self._decided(entry, verdict, policy, now_s)
            least_s = least_wait_s(instances, self._load, now_s)
        for entry in queue.pressing(now_s + least_s):
            refusal = hopeless(entry, least_s, now_s)
            # It may have left while the ones before it were answered.
            if refusal is not None and entry.request_id in self._class_of:
                yield from self._decided(entry, refusal, policy, now_s)

    def _next_of(
        self, request_class: str, instances: Sequence[InstanceView], policy: Policy, now_s: float
    ) -> Iterator[Entry]:
        queue = self.queues[request_class]
        if request_class != BATCH:
            return queue.in_order(LOOKED_AT)
        first_before_s = self._due_first.before_s(queue, self._work.per_s(BATCH, now_s), now_s)
        room = self._long_batch_fits(instances, policy, now_s)

        def wanted(entry: Entry) -> bool:
            return room or entry.tokens <= policy.long_context_tokens or is_late(entry, now_s)

        return queue.in_order(LOOKED_AT, first_before_s, wanted)

    def _long_batch_fits(self, instances: Sequence[InstanceView], policy: Policy, now_s: float) -> bool:
        """Whether one more long prompt without haste leaves enough instances to those who are promised something."""
        if self._work.per_s_besides(BATCH, now_s) < NOBODY_ELSE_SHARE * len(instances):
            return True
        pending = self._pending_long([view.record.instance for view in instances], policy)
        return int((pending > 0).sum()) < max(1, round(LONG_BATCH_SHARE * len(instances)))

    def _decided(
        self, entry: Entry, verdict: Start | Refuse, policy: Policy, now_s: float
    ) -> Iterator[Released]:
        """Its wait is over, unless its tenant wants it served late rather than refused."""
        request_class = entry.request_class
        outcome = _instead(entry, verdict, policy) if isinstance(verdict, Refuse) else verdict
        if isinstance(outcome, Keep):
            self._requeue(entry, request_class)
            return
        self.remove(entry.request_id)
        if isinstance(outcome, Start):
            self._begin(entry, now_s)
        yield Released(entry, outcome)

    def _ahead(self, entry: Entry, fitting: Sequence[InstanceView], now_s: float) -> Prospects:
        if not entry.patient:
            return prospects(entry.tokens, fitting, self._load, self._lengths, now_s)
        others = self._work.per_s_besides(BATCH, now_s) / len(fitting)
        foreseen_share = min(others, FORESEEN_AT_MOST)
        return prospects(
            entry.tokens, fitting, self._load, self._lengths, now_s, HEADROOM_TOKENS, foreseen_share
        )

    def _judge(
        self, entry: Entry, ahead: Prospects, policy: Policy, margins: Margins, now_s: float
    ) -> Verdict:
        return judge(entry, ahead, self._allowed(entry, ahead, policy), margins, now_s)

    def _allowed(self, entry: Entry, ahead: Prospects, policy: Policy) -> np.ndarray:
        """Where it may start, whatever the time: long prompts are limited in number, growing answers keep room."""
        free = self._claims.free_for(entry, [view.record.instance for view in ahead.instances])
        if entry.request_class == INTERACTIVE:
            return free
        reserve = BATCH_KV_RESERVES if entry.patient else 1.0
        kept_tokens = reserve * policy.kv_reserve_share * ahead.kv_capacity_tokens
        # A prompt that takes more than the reserve leaves may still have an instance for itself.
        allowed = free & (
            ahead.kv_free_tokens >= np.minimum(kept_tokens, ahead.kv_capacity_tokens - entry.tokens)
        )
        if entry.request_class != LONG_CONTEXT:
            return allowed
        pending = self._pending_long([view.record.instance for view in ahead.instances], policy)
        most_at_once = max(1, round(policy.long_prefills_share * len(ahead.instances)))
        if int((pending > 0).sum()) >= most_at_once:
            return allowed & (pending > 0) & (pending < policy.long_prefills_per_instance)
        return allowed & (pending < policy.long_prefills_per_instance)

    def _pending_long(self, names: Sequence[str], policy: Policy) -> np.ndarray:
        """By instance, how many long prompts wait for their first token there."""
        return np.array([self._load.pending_longer(name, policy.long_context_tokens) for name in names])

    def _class_order(self, shares: Mapping[str, ClassShare], now_s: float) -> list[str]:
        waiting = {name: queue.earliest_start_s() for name, queue in self.queues.items() if len(queue)}
        ranked = order(waiting, self._work, shares, now_s)
        if BATCH in waiting and self._others_wait(shares, now_s):
            ranked.remove(BATCH)
        return ranked

    def _others_wait(self, shares: Mapping[str, ClassShare], now_s: float) -> bool:
        """Whether batch has to stand back: others wait because the pool is full, and batch has its floor."""
        if not any(len(queue) for name, queue in self.queues.items() if name != BATCH):
            return False
        return self._work.share(BATCH, now_s) >= shares.get(BATCH, ClassShare()).floor

    def _place(self, entry: Entry, instances: int, least_wait_s: float) -> Place:
        """How many are served before it, and when it could begin: fair shares of each other tenant's work count."""
        own_ahead_s, position = 0.0, 0
        others: dict[str, tuple[float, float, int]] = {}
        for name, queue in self.queues.items():
            if name == BATCH and entry.request_class != BATCH:
                continue
            for other in queue:
                if other is entry:
                    continue
                if other.tenant == entry.tenant:
                    if (other.latest_start_s, other.arrived_s) <= (entry.latest_start_s, entry.arrived_s):
                        own_ahead_s += other.own_prefill_s
                        position += 1
                else:
                    weight, work_s, count = others.get(other.tenant, (other.weight, 0.0, 0))
                    others[other.tenant] = weight, work_s + other.own_prefill_s, count + 1
        ahead_s = own_ahead_s
        for weight, work_s, count in others.values():
            before_s = min(work_s, (own_ahead_s + entry.own_prefill_s) * weight / entry.weight)
            ahead_s += before_s
            position += round(count * before_s / work_s) if work_s > 0 else 0
        return Place(position, least_wait_s + ahead_s / instances / OVERLAP)

    def _full(self, entry: Entry, policy: Policy, margins: Margins, place: Place) -> Refuse | None:
        queue, limits = self.queues[entry.request_class], policy.queue
        full = len(queue) + 1 > margins.queue_share * limits.requests
        if not full and queue.input_tokens + entry.tokens <= margins.queue_share * limits.input_tokens:
            return None
        message = f"{len(queue)} requests of this class wait already. Try again later."
        return Refuse(429, "queue_full", message, max(1.0, round(place.expected_start_s)))

    def _expired(self, now_s: float) -> Iterator[Released]:
        for queue in list(self.queues.values()):
            for entry in queue.expired(now_s):
                self.remove(entry.request_id)
                yield Released(entry, _expiry(entry, now_s))

    def _begin(self, entry: Entry, now_s: float) -> None:
        self._started[entry.request_id] = entry
        self._work.started(entry.request_class, entry.own_prefill_s, now_s)
        self.queues[entry.request_class].charge(entry, entry.tokens, 0)

    def _requeue(self, entry: Entry, from_class: str) -> None:
        """It gave up its objective: its place is among those that have none, or in the class below."""
        self.queues[from_class].remove(entry.request_id)
        self.queues[entry.request_class].add(entry)
        self._class_of[entry.request_id] = entry.request_class


def _fitting(entry: Entry, instances: Sequence[InstanceView]) -> list[InstanceView]:
    excluded = entry.request.excluded_instances
    return [
        view
        for view in instances
        if entry.tokens <= longest_prompt_tokens(view) and view.record.instance not in excluded
    ]


def _instead(entry: Entry, refusal: Refuse, policy: Policy) -> Verdict:
    """What its tenant wants for a request that cannot meet its objective: a refusal, the class below, or a wait."""
    if refusal.reason != "predicted_to_miss_objective" or entry.when_late == "refuse":
        return refusal
    if entry.when_late == "degrade" and entry.request_class != BATCH:
        degrade(entry, policy)
        return Keep("degraded")
    entry.promised_s = None
    return Keep("best_effort")


def _expiry(entry: Entry, now_s: float) -> Refuse:
    waited_s = now_s - entry.arrived_s
    if entry.due_s is not None and entry.due_s <= now_s:
        return Refuse(504, "deadline", f"The deadline passed after {waited_s:.0f} s in the queue.")
    message = f"It waited {waited_s:.1f} s, as long as it may. Try again later."
    return Refuse(429, "queue_ttl", message, retry_after_s=max(1.0, round(waited_s)))
