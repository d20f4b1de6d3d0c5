"""Shepherd Model Gateway (formerly SGLang's router): cache-aware routing by an approximate tree."""

from collections.abc import Sequence

from lab.baselines.common import Routed, Router
from lab.baselines.prefix_tree import HeldPrefixes
from lab.sim.api import Arrival
from tokenfleet.contracts.fleet import InstanceRecord

CACHE_THRESHOLD = 0.3
BALANCE_ABS_THRESHOLD = 64
BALANCE_REL_THRESHOLD = 1.5
MAX_TREE_TOKENS = 2**26
EVICTION_INTERVAL_S = 120.0
REMEMBER_PROBABILITY = 1 / 16


class SmgCacheAware(Router):
    """Where the prompt's longest known prefix went, unless the load is out of balance.

    Definition: SMG's documentation and `model_gateway/src/policies/cache_aware.rs` (lightseekorg/smg, read 2026),
    with its command line's defaults 0.3 / 64 / 1.5. Out of balance means that the most requests in flight exceed the
    least by more than 64 and 1.5 times: then the shortest queue. Else, if more than 0.3 of the prompt matches, the
    instance of the longest match; otherwise the instance with the smallest tree. The tree is fed by routing alone, never
    confirmed, and each instance's part is cut to 2^26 tokens, least recently used first, every 120 s.

    Documentation and code differ where little matches: the code sends such a request to the shortest queue, the
    documentation to the smallest tree. `smallest_tree=False` follows the code. Where several instances hold the
    longest match, a node remembers one of them, replaced by the one that uses it with probability 1/16, at first
    the first (`kv_index/src/token_tree.rs`). Hole: the tree is over blocks (its token tree is page-aligned
    likewise). KV events are not used: this is its tree for engines without them.
    """

    def __init__(self, seed: int, *, smallest_tree: bool = True) -> None:
        super().__init__(seed)
        self._smallest_tree = smallest_tree
        self._tree = HeldPrefixes()
        self._swept_s = 0.0

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        self._sweep(now_s)
        requests = [self.loads[name].requests for name in usable]
        least, most = min(requests), max(requests)
        if most - least > BALANCE_ABS_THRESHOLD and most > BALANCE_REL_THRESHOLD * least:
            return usable[requests.index(least)]
        node, matched = self._tree.walk(arrival.blocks)
        block_tokens = arrival.spec.block_size_tokens
        if matched * block_tokens > CACHE_THRESHOLD * arrival.spec.input_tokens:
            remembered: str | None = node.stats
            holder = remembered if remembered in node.holders else next(iter(node.holders))
            # One that may not serve this request: SMG falls back to the first healthy worker.
            return holder if holder is not None and holder in usable else usable[0]
        if self._smallest_tree:
            return min(usable, key=self._tree.held_blocks.__getitem__)
        return usable[requests.index(least)]

    def _sweep(self, now_s: float) -> None:
        if now_s - self._swept_s < EVICTION_INTERVAL_S:
            return
        self._swept_s = now_s
        for name, load in self.loads.items():
            self._tree.evict(name, MAX_TREE_TOKENS // load.record.block_size_tokens)

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        for node in self._tree.hold(arrival.blocks, routed.instance).path():
            if self.random.random() < REMEMBER_PROBABILITY:
                node.stats = routed.instance

    def appeared(self, record: InstanceRecord) -> None:
        self._tree.add_holder(record.instance)

    def vanished(self, record: InstanceRecord) -> None:
        self._tree.drop_holder(record.instance)
