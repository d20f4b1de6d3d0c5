"""llm-d's router with its default scorers."""

from collections.abc import Mapping, Sequence

from lab.baselines.common import Routed, Router
from lab.baselines.llm_d_prefix import ApproximatePrefixes, producer_blocks
from lab.sim.api import Arrival, Decision
from tokenfleet.contracts.fleet import InstanceRecord

QUEUE_WEIGHT = 2.0
KV_WEIGHT = 2.0
PREFIX_WEIGHT = 3.0


class LlmD(Router):
    """Highest sum of queue, KV and prefix scores.

    Definition: llm-d-router ebab687 (2026-08-22), `pkg/epp/config/loader/defaults.go`: queue-scorer 2
    (`(max - q) / (max - min)` over waiting requests, 1 if all are equal), kv-cache-utilization-scorer 2 (`1 - usage`),
    prefix-cache-scorer 3 (matched share of the prompt's blocks), max-score-picker with a random tie-break. Queue and
    KV are the last reading's, uncorrected, as it scrapes them (every 50 ms there; a reading that has not come yet
    counts as empty); the prefix comes from its approximate producer (`llm_d_prefix`).
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._prefixes = ApproximatePrefixes()
        self._blocks: Sequence[int] = ()

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str | Decision:
        return self.best(arrival, usable)

    def best(self, arrival: Arrival, usable: Sequence[str]) -> str:
        """The instance of the highest score."""
        share = self.prefix_shares(arrival)
        scores = self.scores(usable, share, QUEUE_WEIGHT, KV_WEIGHT, PREFIX_WEIGHT)
        return self.least(usable, lambda name: -scores[name])

    def prefix_shares(self, arrival: Arrival) -> dict[str, float]:
        """Share of the prompt's blocks that each instance is believed to hold; 0 for those left out."""
        self._blocks = producer_blocks(arrival)
        matches = self._prefixes.matches(self._blocks)
        return {name: count / len(self._blocks) for name, count in matches.items()}

    def scores(
        self, usable: Sequence[str], share: Mapping[str, float], queue: float, kv: float, prefix: float
    ) -> dict[str, float]:
        """The weighted sum of the three scores for each instance."""
        loads = self.loads
        waiting = [loads[name].waiting for name in usable]
        most = max(waiting)
        spread = most - min(waiting)
        return {
            name: queue * ((most - waits) / spread if spread else 1.0)
            + kv * (1 - loads[name].kv_usage)
            + prefix * share.get(name, 0.0)
            for name, waits in zip(usable, waiting, strict=True)
        }

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        self._prefixes.routed(self._blocks, routed.instance)

    def appeared(self, record: InstanceRecord) -> None:
        self._prefixes.add_instance(record)

    def vanished(self, record: InstanceRecord) -> None:
        self._prefixes.drop_instance(record.instance)
