"""Shepherd Model Gateway: least-load routing by drain time and a KV barrier."""

from collections.abc import Sequence

from lab.baselines.common import Load, Routed, Router
from lab.sim.api import Arrival
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState

KV_PRESSURE_WEIGHT_S = 0.15
DEFAULT_THROUGHPUT_TOKENS_PER_S = 2_000.0
PUBLISHED_POLL_S = 10.0
FULLEST_KV = 0.999


class _Polled:
    """One instance as of the last poll."""

    __slots__ = ("dispatched_tokens", "kv_usage", "polled_s", "queued_tokens")

    def __init__(self) -> None:
        self.polled_s = float("-inf")
        self.queued_tokens = 0
        self.kv_usage = 0.0
        self.dispatched_tokens = 0
        """Input tokens sent there since."""


class SmgLeastLoad(Router):
    """Least time to drain the queue, plus a barrier that diverges as the KV cache fills.

    Definition: `model_gateway/src/policies/least_load.rs` (lightseekorg/smg, read 2026), lower is better:
    `(queued tokens + tokens dispatched since the last poll) / throughput + 0.15 s * k / (1 - k)` with `k` the KV
    usage; the first of equals wins. Throughput is 2,000 tokens/s, its default for engines that report none: telemetry
    here has no rate, as vLLM's has none. A prompt's tokens are known (its gRPC path).

    It polls every 10 s by default. Here a poll is every reading that arrives, which is far fresher than it would
    ever have; `poll_s=PUBLISHED_POLL_S` is its own default. Hole: SGLang reports the tokens waiting, our telemetry only
    the number of requests, so queued tokens are the prompts this router sent that have no first token. That is in its
    favour: SGLang leaves out the prompt being computed (on the reference pool at 1.35x TTFT P50/P95 is 1.05/6.16 s
    without it, 0.76/4.82 s with it).
    """

    def __init__(self, seed: int, *, poll_s: float = 0.0) -> None:
        super().__init__(seed)
        self._poll_s = poll_s
        self._polled: dict[str, _Polled] = {}

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        return min(usable, key=self._score)

    def _score(self, instance: str) -> float:
        polled = self._polled[instance]
        tokens = polled.queued_tokens + polled.dispatched_tokens
        k = min(polled.kv_usage, FULLEST_KV)
        return tokens / DEFAULT_THROUGHPUT_TOKENS_PER_S + KV_PRESSURE_WEIGHT_S * k / (1 - k)

    def heard(self, load: Load, before: InstanceState | None, now_s: float) -> None:
        polled = self._polled[load.record.instance]
        if now_s - polled.polled_s < self._poll_s:
            return
        polled.polled_s = now_s
        polled.kv_usage = load.kv_usage
        polled.queued_tokens = load.pending_tokens
        polled.dispatched_tokens = 0

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        self._polled[routed.instance].dispatched_tokens += routed.input_tokens

    def appeared(self, record: InstanceRecord) -> None:
        self._polled[record.instance] = _Polled()

    def vanished(self, record: InstanceRecord) -> None:
        del self._polled[record.instance]
