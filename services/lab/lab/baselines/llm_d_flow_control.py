"""llm-d's router with flow control: requests wait at the router while the pool is saturated."""

from collections.abc import Iterable, Sequence

from lab.baselines.common import Load, abandoned
from lab.baselines.llm_d import LlmD
from lab.sim.api import Arrival, Decision, Hold, Refuse, Released

QUEUE_DEPTH_THRESHOLD = 5
KV_USAGE_THRESHOLD = 0.8
STALE_AFTER_S = 0.2
DISPATCH_TICK_S = 0.001
REQUEST_TTL_S = 60.0
BAND_CAPACITY = 5_000


class LlmDFlowControl(LlmD):
    """llm-d's default routing behind its own queue.

    Definition: llm-d-router ebab687, `pkg/epp/flowcontrol` with its defaults. Saturation is the mean over endpoints of
    `max(waiting / 5, KV usage / 0.8)`, 1 for one not heard of for 200 ms (fail closed: telemetry slower than that
    halts it, its issue 2100). While it is at least 1, requests queue; otherwise one is dispatched each millisecond,
    first come first served (global-strict fairness, one priority). A request that waited 60 s is refused with 429, so
    is one that finds 5,000 queued. Dispatches are not credited until the next reading shows them. Hole: the simulator
    asks after changes of state, not each millisecond, so the ticks that passed since it last asked, if the pool was not
    saturated then, are made up for at once.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._queue: dict[str, tuple[Arrival, float]] = {}
        self._open_since_s: float | None = None
        """When it was last asked, if the pool was not saturated then and requests still queued."""

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str | Decision:
        if not self._queue and self.saturation(usable, now_s) < 1:
            return self.best(arrival, usable)
        if len(self._queue) >= BAND_CAPACITY:
            return Refuse(429, "flow_control_capacity")
        self._queue[arrival.request_id] = (arrival, now_s)
        return Hold()

    def saturation(self, usable: Sequence[str], now_s: float) -> float:
        """How full the pool is; at 1 nothing is dispatched."""
        return sum(_saturation(self.loads[name], now_s) for name in usable) / len(usable)

    def release(self, now_s: float) -> Iterable[Released]:
        released: list[Released] = []
        open_since_s, self._open_since_s = self._open_since_s, None
        ticks = 1 if open_since_s is None else int((now_s - open_since_s) / DISPATCH_TICK_S + 1e-6)
        for request_id, (arrival, queued_s) in list(self._queue.items()):
            if abandoned(arrival, now_s):
                del self._queue[request_id]
                continue
            if now_s - queued_s >= REQUEST_TTL_S:
                decision = Refuse(429, "flow_control_ttl")
            elif not (usable := self.usable(arrival.spec)):
                decision = Refuse(503, "no_ready_instance")
            elif self.saturation(usable, now_s) >= 1:
                break
            elif ticks < 1:
                # The next tick counts from the last one used, not from this question.
                self._open_since_s = now_s if open_since_s is None or released else open_since_s
                break
            else:
                ticks -= 1
                decision = self.route(arrival, self.best(arrival, usable), now_s)
            del self._queue[request_id]
            released.append(Released(request_id, decision))
        return released

    def ended(self, request_id: str, instance: str, output_tokens: int, now_s: float) -> None:
        self._queue.pop(request_id, None)
        super().ended(request_id, instance, output_tokens, now_s)


def _saturation(load: Load, now_s: float) -> float:
    if load.state is None or now_s - load.heard_s > STALE_AFTER_S:
        return 1.0
    return max(load.waiting / QUEUE_DEPTH_THRESHOLD, load.kv_usage / KV_USAGE_THRESHOLD)
