"""Mooncake's conductor: least predicted TTFT, and early rejection by predicted load."""

from collections.abc import Sequence

from lab.baselines.common import DEFAULT_PROMISES, Load, Routed, Router, objective_of
from lab.sim.api import Arrival, Decision, Refuse
from tokenfleet.contracts import policy as contracts
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.engine.profile import decode_step_s, prefill_s
from tokenpilot.policy.prefix_index import PrefixIndex


class _Queue:
    """The prefills an instance has before it, as the conductor books them."""

    __slots__ = ("done_s", "prefills_s")

    def __init__(self) -> None:
        self.done_s = 0.0
        """When they are expected to be done."""
        self.prefills_s: dict[str, float] = {}


class MooncakeConductor(Router):
    """Least queue plus prefill; refused if that, or the decodes then, would miss the objective.

    Definition: Mooncake (FAST 2025, arXiv 2407.00079), section 6 (KVCache-centric scheduling, algorithm 1) and section 7
    (early rejection based on prediction). TTFT of an instance is its queue, the booked prefill times of the requests
    before this one, plus the prefill of what it does not cache (KV events). The least wins. Refused with 429 if that TTFT
    exceeds the objective (prefill load), or if the decode step expected there when this prefill ends exceeds the TPOT
    objective (decode load); then every request that decodes is taken to do so for one uniform duration.

    Holes: prefill and decode are on the same instances here, so a better prefix elsewhere is never fetched (no
    transfer term) and prefill times include the decodes beside them. The offline-fitted prefill model is the
    hardware profile's timing. The queue is corrected by each first token. The uniform duration is the mean of those
    observed; until there is one, nobody is taken to leave. A class without objectives is never refused.
    """

    def __init__(self, seed: int, promises: contracts.Policy = DEFAULT_PROMISES) -> None:
        super().__init__(seed)
        self._promises = promises
        self._cached = PrefixIndex()
        self._overlap: dict[str, int] = {}
        self._queues: dict[str, _Queue] = {}
        self._decodes = 0
        self._mean_decode_s = float("inf")

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str | Decision:
        self._overlap = self._cached.match(arrival.blocks)
        ttfts = {name: self._ttft_s(arrival, name, now_s) for name in usable}
        best = self.least(usable, ttfts.__getitem__)
        objective = objective_of(arrival.spec, self._promises)
        if objective.ttft_s is not None and ttfts[best] > objective.ttft_s:
            return Refuse(429, "prefill_load")
        ends_s = now_s + ttfts[best]
        if objective.tpot_s is not None and self._step_s(arrival, best, ends_s) > objective.tpot_s:
            return Refuse(429, "decode_load")
        return self.route(arrival, best, now_s, ttfts[best])

    def _ttft_s(self, arrival: Arrival, name: str, now_s: float) -> float:
        queue_s = max(0.0, self._queues[name].done_s - now_s)
        return queue_s + self._prefill_s(arrival, self.loads[name])

    def _prefill_s(self, arrival: Arrival, load: Load) -> float:
        uncached = self.uncached_tokens(arrival, load.record.instance)
        cached = arrival.spec.input_tokens - uncached
        return prefill_s(load.profile, uncached, cached, len(load.decoding), load.decoding_tokens)

    def _step_s(self, arrival: Arrival, name: str, at_s: float) -> float:
        """The decode step on an instance once this request decodes there."""
        load = self.loads[name]
        decoding, tokens = 1, arrival.spec.input_tokens
        for routed in load.pending.values():
            decoding += 1
            tokens += routed.input_tokens
        for routed in load.decoding.values():
            assert routed.first_token_s is not None
            if routed.first_token_s + self._mean_decode_s > at_s:
                decoding += 1
                tokens += routed.input_tokens
        return decode_step_s(load.profile, decoding, tokens)

    def uncached_tokens(self, arrival: Arrival, instance: str) -> int:
        cached = self._overlap.get(instance, 0) * arrival.spec.block_size_tokens
        return arrival.spec.input_tokens - min(cached, arrival.spec.input_tokens - 1)

    def blocks(self, instance: str, stored: Sequence[int], removed: Sequence[int], now_s: float) -> None:
        if instance in self.loads:
            self._cached.remove(instance, removed)
            self._cached.store(instance, stored)

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        queue = self._queues[routed.instance]
        seconds = self._prefill_s(arrival, self.loads[routed.instance])
        queue.prefills_s[routed.request_id] = seconds
        queue.done_s = max(queue.done_s, routed.routed_s) + seconds

    def prefilled(self, routed: Routed, now_s: float) -> None:
        self._dequeue(routed, now_s)

    def finished(self, routed: Routed, output_tokens: int, now_s: float) -> None:
        self._dequeue(routed, now_s)
        if routed.first_token_s is None:
            return
        self._decodes += 1
        decode_s = now_s - routed.first_token_s
        if self._decodes == 1:
            self._mean_decode_s = decode_s
        else:
            self._mean_decode_s += (decode_s - self._mean_decode_s) / self._decodes

    def _dequeue(self, routed: Routed, now_s: float) -> None:
        queue = self._queues[routed.instance]
        if queue.prefills_s.pop(routed.request_id, None) is not None:
            queue.done_s = now_s + sum(queue.prefills_s.values())

    def appeared(self, record: InstanceRecord) -> None:
        self._queues[record.instance] = _Queue()

    def vanished(self, record: InstanceRecord) -> None:
        del self._queues[record.instance]
        self._cached.drop(record.instance)
