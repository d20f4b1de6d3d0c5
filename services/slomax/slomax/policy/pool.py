"""SLOMax for one pool: its queues, and the margins that outcomes move. Pure; the live service and the lab drive it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slomax.policy.admission import Refuse, Start, Verdict
from slomax.policy.classify import BATCH
from slomax.policy.entry import Entry
from slomax.policy.fair_queue import FairQueue
from slomax.policy.feedback import WINDOW_S, Adjustment, Controller
from slomax.policy.outcomes import Evidence, judge_outcome
from slomax.policy.places import Place
from slomax.policy.scheduler import PoolScheduler, Released
from tokenfleet.contracts.policy import ClassShare, Policy
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, OutputLengths

TOO_MANY_REQUESTS = 429


@dataclass(slots=True)
class _Running:
    entry: Entry
    started_s: float
    first_token_s: float | None = None


class PoolAdmission:
    """One pool.

    Args:
        load: what each instance is busy with.
        lengths: how long answers are.
    """

    def __init__(self, load: LoadView, lengths: OutputLengths) -> None:
        self._scheduler = PoolScheduler(load, lengths)
        self._controller = Controller()
        self._running: dict[str, _Running] = {}
        self._window: dict[str, Evidence] = defaultdict(Evidence)
        self._window_start_s: float | None = None
        self._ledger: dict[str, Evidence] = {}

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._scheduler)

    def waiting_s(self) -> float:
        """Prefill of all that wait, in engine seconds; nothing of batch, which gives way to whatever comes."""
        return sum(
            entry.own_prefill_s
            for name, queue in self._scheduler.queues.items()
            if name != BATCH
            for entry in queue
        )

    @property
    def queues(self) -> Mapping[str, FairQueue]:
        """By class."""
        return self._scheduler.queues

    def submit(
        self, entry: Entry, instances: Sequence[InstanceView], policy: Policy, now_s: float
    ) -> Verdict:
        """A request arrived; as `PoolScheduler.submit`. A retry was promised its chance already: it starts."""
        if entry.attempt > 1 or not policy.admission:
            verdict: Verdict = self._scheduler.start_at_once(
                entry, instances, "retry" if entry.attempt > 1 else "admission_off", now_s
            )
        else:
            self._seen(entry).offered += 1
            verdict = self._scheduler.submit(
                entry, instances, policy, self._controller.margins(policy), self._shares(policy), now_s
            )
        if isinstance(verdict, Start | Refuse):
            self._decided(entry, verdict, now_s)
        return verdict

    def release(self, instances: Sequence[InstanceView], policy: Policy, now_s: float) -> Iterator[Released]:
        """Those whose wait is over; as `PoolScheduler.release`."""
        margins, shares = self._controller.margins(policy), self._shares(policy)
        for released in self._scheduler.release(instances, policy, margins, shares, now_s):
            self._decided(released.entry, released.verdict, now_s)
            yield released

    def first_token(self, request_id: str, now_s: float) -> None:
        """An admitted request's first token went by."""
        running = self._running.get(request_id)
        if running is not None and running.first_token_s is None:
            running.first_token_s = now_s

    def attempt_failed(self, request_id: str) -> None:
        """An attempt ended without a token; another is coming, or the request's end."""
        running = self._running.get(request_id)
        if running is not None:
            running.first_token_s = None

    def remove(self, request_id: str) -> Entry | None:
        """A waiting request's client left: it is charged nothing. None: it did not wait."""
        return self._scheduler.remove(request_id)

    def ended(
        self,
        request_id: str,
        now_s: float,
        *,
        completed: bool,
        output_tokens: int,
        reused_tokens: int = 0,
        client_left: bool = False,
    ) -> None:
        """A request is over, whatever became of it."""
        self._scheduler.ended(request_id, reused_tokens=reused_tokens, output_tokens=output_tokens)
        running = self._running.pop(request_id, None)
        if running is None or client_left or running.entry.given_up:
            return
        outcome = judge_outcome(
            running.entry, running.first_token_s, now_s, output_tokens, completed=completed
        )
        self._seen(running.entry).add(outcome)

    def expire(self, before_s: float) -> int:
        """Forget requests that started before a time and whose end was never reported. Returns how many."""
        lost = [request_id for request_id, running in self._running.items() if running.started_s < before_s]
        for request_id in lost:
            del self._running[request_id]
            self._scheduler.forget(request_id)
        return len(lost)

    def ledger_window(self, request_class: str, seen: Evidence) -> None:
        """What the ledger saw of a class lately: used where it saw more ends than this replica, which may be new."""
        seen.patient = self._window[request_class].patient
        self._ledger[request_class] = seen

    def adjust(self, policy: Policy, now_s: float) -> list[Adjustment]:
        """Let feedback move margins and shares when a window is over. Returns what changed."""
        if self._window_start_s is None:
            self._window_start_s = now_s
        if now_s - self._window_start_s < WINDOW_S:
            return []
        windows = {
            name: self._ledger[name]
            if name in self._ledger and self._ledger[name].ended > seen.ended
            else seen
            for name, seen in self._window.items()
        }
        self._window_start_s = now_s
        self._window = defaultdict(Evidence)
        self._ledger = {}
        self._scheduler.forget_idle(now_s)
        return self._controller.judge(windows, policy, now_s)

    def kept_free(self, entry: Entry) -> tuple[str, ...]:
        """Instances where a request that starts should not go, though they look free."""
        return self._scheduler.kept_free(entry)

    def place_of(self, request_id: str, instances: int) -> Place | None:
        """Where a waiting request stands."""
        return self._scheduler.place_of(request_id, instances)

    def places(self, instances: int) -> Iterator[tuple[str, Place]]:
        """Where all that wait stand."""
        return self._scheduler.places(instances)

    def expected_start_s(self, request_class: str, instances: int) -> float:
        """When a request of this class that arrives now could begin."""
        return self._scheduler.expected_start_s(request_class, instances)

    def knobs(self, policy: Policy) -> Mapping[str, float]:
        """The margins and floors in force."""
        margins = self._controller.margins(policy)
        return {
            "wait_share_of_slack": margins.wait_share_of_slack,
            "hold_share_of_slack": margins.hold_share_of_slack,
            "misses_allowed": margins.misses_allowed,
            "queue_share": margins.queue_share,
            **{f"{name}.floor": share.floor for name, share in self._shares(policy).items()},
        }

    def _shares(self, policy: Policy) -> Mapping[str, ClassShare]:
        return self._controller.shares(policy)

    def _seen(self, entry: Entry) -> Evidence:
        seen = self._window[entry.request_class]
        seen.patient = entry.patient
        return seen

    def _decided(self, entry: Entry, verdict: Start | Refuse, now_s: float) -> None:
        if isinstance(verdict, Start):
            self._running[entry.request_id] = _Running(entry, now_s)
            self._seen(entry).refused += int(entry.given_up)
        elif verdict.status == TOO_MANY_REQUESTS:
            self._seen(entry).refused += 1
