"""NVIDIA Dynamo's KV router."""

from collections.abc import Sequence

from lab.baselines.common import Routed, Router
from lab.baselines.prefix_tree import Node, PrefixTree
from lab.sim.api import Arrival
from tokenfleet.contracts.fleet import InstanceRecord
from tokenpilot.policy.prefix_index import PrefixIndex

PREFILL_LOAD_SCALE = 1.0
OVERLAP_CREDIT = 1.0


class DynamoKv(Router):
    """Least prefill blocks plus decode blocks.

    Definition: NVIDIA Dynamo 1.6 (ai-dynamo/dynamo, `lib/kv-router`), default selector, lower is better:
    `max(0, raw prefill blocks - overlap) + decode blocks`, softmax temperature 0 (the least; ties drawn), weights 1,
    request weight 0, no queueing. Raw prefill blocks are the tokens the worker still has to prefill (the new tokens of
    requests without a first token, as the router booked them) plus this prompt's, in blocks; overlap is
    what KV events say the worker caches of the prompt; decode blocks are the distinct full prompt blocks of its
    active requests, this one included. Host and disk tiers do not exist here. Output blocks are not counted (its default).
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._cached = PrefixIndex()
        self._active = PrefixTree()
        self._active_blocks: dict[str, int] = {}
        self._leaf: dict[str, Node] = {}
        self._overlap: dict[str, int] = {}

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        size = arrival.spec.block_size_tokens
        tokens = arrival.spec.input_tokens
        overlap = self._overlap = self._cached.match(arrival.blocks)
        shared = self._shared(arrival.blocks)

        def cost(name: str) -> float:
            raw_prefill = PREFILL_LOAD_SCALE * (self.loads[name].pending_tokens + tokens) / size
            prefill = max(0.0, raw_prefill - OVERLAP_CREDIT * overlap.get(name, 0))
            return prefill + self._active_blocks[name] + len(arrival.blocks) - shared.get(name, 0)

        return self.least(usable, cost)

    def uncached_tokens(self, arrival: Arrival, instance: str) -> int:
        cached = self._overlap.get(instance, 0) * arrival.spec.block_size_tokens
        return max(0, arrival.spec.input_tokens - cached)

    def blocks(self, instance: str, stored: Sequence[int], removed: Sequence[int], now_s: float) -> None:
        if instance in self.loads:
            self._cached.remove(instance, removed)
            self._cached.store(instance, stored)

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        leaf, _ = self._active.insert(arrival.blocks)
        name = routed.instance
        for node in leaf.path():
            references = node.holders.get(name, 0)
            if not references:
                self._active_blocks[name] += len(node)
            node.holders[name] = references + 1
        self._leaf[routed.request_id] = leaf

    def finished(self, routed: Routed, output_tokens: int, now_s: float) -> None:
        name = routed.instance
        for node in list(self._leaf.pop(routed.request_id).path()):
            node.holders[name] -= 1
            if node.holders[name]:
                continue
            del node.holders[name]
            self._active_blocks[name] -= len(node)
            if not node.holders and not node.children:
                self._active.prune(node)

    def appeared(self, record: InstanceRecord) -> None:
        self._active_blocks[record.instance] = 0

    def vanished(self, record: InstanceRecord) -> None:
        del self._active_blocks[record.instance]
        self._cached.drop(record.instance)

    def _shared(self, blocks: Sequence[int]) -> dict[str, int]:
        """For each worker, how many of these blocks its active requests hold already."""
        node, matched = self._active.walk(blocks)
        shared: dict[str, int] = {}
        for above in node.path():
            depth = min(above.end, matched)
            for name in above.holders:
                shared.setdefault(name, depth)
        return shared
