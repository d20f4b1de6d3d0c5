"""Preble's E2: exploit a cached prefix, or explore for the least load."""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from lab.baselines.common import Routed, Router
from lab.baselines.prefix_tree import Node, PrefixTree
from lab.sim.api import Arrival
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.engine.profile import prefill_s

WINDOW_S = 180.0
FIRST_TPOT_S = 0.15
FIRST_OUTPUT_TOKENS = 45.0
REMEMBERED_TPOTS = 200


class _Stats:
    """A node's share of the window. `uses` counts every prompt through it, the rest those it is charged for."""

    __slots__ = ("hit_tokens", "node", "prompt_tokens", "requests", "uses")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.uses = 0
        self.requests = 0
        self.hit_tokens = 0
        self.prompt_tokens = 0


class _Use(NamedTuple):
    """One request in the window."""

    time_s: float
    leaf: Node
    charged: _Stats
    hit_tokens: int
    prompt_tokens: int


class PrebleE2(Router):
    """Where most of the prompt is cached, if that is most of it; otherwise where the cost is least.

    Definition: Preble (ICLR 2025, arXiv 2407.00023) and `multi_node/global_scheduler_with_time.py`
    (WukLab/preble). One radix tree of the prompts routed in the last 3 minutes. Exploit: if the longest prefix that an
    instance holds is longer than the rest, the holders of that prefix, of several the one of least cost. Explore: the
    least cost over all. Cost of an instance: over the nodes allocated to it, `miss rate * requests * prefill time /
    holders`, plus `active requests * mean output length * median TPOT`. A request is charged to the lowest node of its
    path that is longer than all above it; a node's miss rate is the share of its requests' tokens that no earlier
    prompt had.

    Holes: the prefill time is the hardware profile's; output lengths start at 45 tokens and TPOT at 0.15 s, as there. A
    node's holders are forgotten once no request used it for 3 minutes. The eviction term and rebalancing are off, as
    in the repository's default (there the rebalancing call is commented out).
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._tree = PrefixTree()
        self._window: deque[_Use] = deque()
        self._records: dict[str, InstanceRecord] = {}
        self._prefill_cost_s: dict[str, float] = {}
        self._tpots: dict[str, deque[float]] = {}
        self._median_tpot_s: dict[str, float] = {}
        self._outputs = 0
        self._mean_output_tokens = FIRST_OUTPUT_TOKENS

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        self._expire(now_s)
        node, matched = self._tree.walk(arrival.blocks)
        for above in node.path():
            cached_tokens = min(above.end, matched) * arrival.spec.block_size_tokens
            if cached_tokens <= arrival.spec.input_tokens - cached_tokens:
                break
            if holders := [name for name in usable if name in above.holders]:
                return self.least(holders, self.cost_s)
        return self.least(usable, self.cost_s)

    def cost_s(self, instance: str) -> float:
        """What an instance has to do for the window's prompts and its active requests, in seconds."""
        decode_s = self.loads[instance].requests * self._mean_output_tokens * self._median_tpot_s[instance]
        return self._prefill_cost_s[instance] + decode_s

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        tree, size = self._tree, arrival.spec.block_size_tokens
        reached, matched = tree.walk(arrival.blocks)
        if matched < reached.end:
            self._charge(reached.stats, -1)
        leaf, head = tree.insert(arrival.blocks)
        if head is not None:
            _divide(head, reached)
            self._charge(head.stats, 1)
            self._charge(reached.stats, 1)
        hit_tokens, prompt_tokens = matched * size, len(arrival.blocks) * size
        charged = None
        for node in leaf.path():
            stats: _Stats = node.stats or _Stats(node)
            node.stats = stats
            self._charge(stats, -1)
            node.holders[routed.instance] = 1
            stats.uses += 1
            if charged is None and len(node) > node.start:
                charged = stats
                stats.requests += 1
                stats.hit_tokens += hit_tokens
                stats.prompt_tokens += prompt_tokens
            self._charge(stats, 1)
        if charged is not None:
            self._window.append(_Use(routed.routed_s, leaf, charged, hit_tokens, prompt_tokens))

    def _charge(self, stats: _Stats, sign: int) -> None:
        """Add a node's prefill cost to its holders, or take it away."""
        if not stats.requests:
            return
        node = stats.node
        missed_requests = stats.requests * (1 - stats.hit_tokens / stats.prompt_tokens)
        for name in node.holders:
            record = self._records[name]
            size = record.block_size_tokens
            seconds = prefill_s(record.profile, len(node) * size, node.start * size)
            self._prefill_cost_s[name] += sign * missed_requests * seconds / len(node.holders)

    def _expire(self, now_s: float) -> None:
        window = self._window
        while window and window[0].time_s < now_s - WINDOW_S:
            use = window.popleft()
            self._charge(use.charged, -1)
            use.charged.requests -= 1
            use.charged.hit_tokens -= use.hit_tokens
            use.charged.prompt_tokens -= use.prompt_tokens
            self._charge(use.charged, 1)
            for node in list(use.leaf.path()):
                node.stats.uses -= 1
                if not node.stats.uses:
                    node.holders.clear()
                    self._tree.prune(node)

    def finished(self, routed: Routed, output_tokens: int, now_s: float) -> None:
        if routed.first_token_s is None or output_tokens < 2:
            return
        self._outputs += 1
        weight = 1 / self._outputs
        self._mean_output_tokens += weight * (output_tokens - self._mean_output_tokens)
        tpots = self._tpots[routed.instance]
        tpots.append((now_s - routed.first_token_s) / (output_tokens - 1))
        self._median_tpot_s[routed.instance] = median(tpots)

    def appeared(self, record: InstanceRecord) -> None:
        name = record.instance
        self._records[name] = record
        self._prefill_cost_s[name] = 0.0
        self._tpots[name] = deque([FIRST_TPOT_S], maxlen=REMEMBERED_TPOTS)
        self._median_tpot_s[name] = FIRST_TPOT_S

    def vanished(self, record: InstanceRecord) -> None:
        name = record.instance
        for node in self._tree.nodes():
            if name in node.holders:
                self._charge(node.stats, -1)
                del node.holders[name]
                self._charge(node.stats, 1)
        del self._records[name], self._prefill_cost_s[name], self._tpots[name], self._median_tpot_s[name]


def _divide(head: Node, lower: Node) -> None:
    """A node was cut: what it is charged for moves up if only the upper part is still longer than all above it."""
    stats: _Stats = lower.stats
    other = _Stats(head)
    other.uses = stats.uses
    if len(lower) > lower.start:
        head.stats = other
    else:
        head.stats, lower.stats = stats, other
        stats.node, other.node = head, lower
