"""Paged KV blocks with an LRU prefix cache.

Cached blocks form a radix tree: a node is a run of consecutive blocks of one prefix, so the work per request
depends on how many prefixes branch, hardly on how many blocks it has. A block is one of
- private: held by one request (a prompt part not computed yet, or output), with no hash;
- cached and referenced: computed, known by its hash, held by one or more requests;
- cached and unreferenced: held by nobody, evicted when room is needed, least recently used first and the
  deeper blocks of a prefix before those they depend on.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import msgspec


class Stored(msgspec.Struct, frozen=True):
    """Blocks became cached: consecutive, the first at `first_block` of the request's prompt."""

    request_id: str
    first_block: int
    parent: Hashable | None
    hashes: tuple[Hashable, ...]


class Removed(msgspec.Struct, frozen=True):
    """Cached blocks were evicted, in this order."""

    hashes: tuple[Hashable, ...]


class Cleared(msgspec.Struct, frozen=True):
    """All cached blocks were dropped."""


KvChange = Stored | Removed | Cleared


class _Node:
    """A run of cached blocks. `references` counts the requests whose path from the root passes through it."""

    __slots__ = ("children", "hashes", "parent", "references")

    def __init__(self, parent: "_Node | None", hashes: list[Hashable], references: int) -> None:
        self.parent = parent
        self.hashes = hashes
        self.references = references
        self.children: dict[Hashable, _Node] = {}


class Allocation:
    """The blocks one request holds: a path of cached blocks, then private ones."""

    __slots__ = ("cached_blocks", "node", "private_blocks", "request_id")

    def __init__(self, request_id: str, node: _Node, cached_blocks: int, private_blocks: int) -> None:
        self.request_id = request_id
        self.node = node
        self.cached_blocks = cached_blocks
        self.private_blocks = private_blocks


class KvCache:
    """The KV blocks of one engine.

    Block hashes are opaque but must be chained, as engines' are: equal hashes mean equal whole prefixes.

    Args:
        capacity_blocks: how many blocks there are.
        record_changes: keep what was stored and removed until `take_changes`.
    """

    def __init__(self, capacity_blocks: int, *, record_changes: bool = False) -> None:
        if capacity_blocks < 1:
            raise ValueError(f"An engine needs at least one KV block, not {capacity_blocks}")
        self.capacity_blocks = capacity_blocks
        self.private_blocks = 0
        self.cached_blocks = 0
        self.unreferenced_blocks = 0
        self._root = _Node(None, [], 0)
        self._unreferenced: OrderedDict[_Node, None] = OrderedDict()
        self._changes: list[KvChange] | None = [] if record_changes else None

    @property
    def used_blocks(self) -> int:
        """Blocks held by requests."""
        return self.private_blocks + self.cached_blocks - self.unreferenced_blocks

    @property
    def available_blocks(self) -> int:
        """Blocks that are free or can be evicted."""
        return self.capacity_blocks - self.used_blocks

    def match(self, hashes: Sequence[Hashable]) -> int:
        """How many of these blocks, from the first on without a gap, are cached. Changes nothing."""
        return self._walk(hashes, len(hashes))[2]

    def allocate(
        self, request_id: str, hashes: Sequence[Hashable], reusable_blocks: int, total_blocks: int
    ) -> Allocation | None:
        """Take `total_blocks`: what is cached of the first `reusable_blocks` hashes, the rest private.

        Returns None, and changes nothing, when they do not fit.
        """
        node, matched_in_node, matched = self._walk(hashes, reusable_blocks)
        revived = 0
        above, length = node, matched_in_node
        while above.parent is not None and above.references == 0:
            revived += length
            above = above.parent
            length = len(above.hashes)
        private = total_blocks - matched
        if private + revived > self.available_blocks:
            return None
        if matched_in_node < len(node.hashes):
            node = self._split(node, matched_in_node)
        above = node
        while above.parent is not None:
            self._reference(above)
            above = above.parent
        self._take(private)
        return Allocation(request_id, node, matched, private)

    def extend(self, blocks: int) -> bool:
        """Take more private blocks, for one allocation or for several at once.

        The caller adds them to `private_blocks` of the allocations at the latest before these are freed.
        Returns False, and changes nothing, when they do not fit.
        """
        if blocks > self.available_blocks:
            return False
        self._take(blocks)
        return True

    def commit(self, allocation: Allocation, hashes: Sequence[Hashable], computed_blocks: int) -> None:
        """The first `computed_blocks` of the prompt are computed: they become cached.

        Where another request cached the same blocks meanwhile, they are shared and the private copy is freed.
        """
        start = allocation.cached_blocks
        while start < computed_blocks:
            node = allocation.node
            child = node.children.get(hashes[start])
            if child is not None:
                shared = _common_length(child.hashes, hashes, start, computed_blocks)
                if shared < len(child.hashes):
                    child = self._split(child, shared)
                self._reference(child)
                allocation.node = child
                start += shared
            else:
                allocation.node = self._append(allocation, hashes[start:computed_blocks], start)
                start = computed_blocks
        newly_cached = start - allocation.cached_blocks
        allocation.cached_blocks = start
        allocation.private_blocks -= newly_cached
        self.private_blocks -= newly_cached

    def free(self, allocation: Allocation) -> None:
        """Give back everything an allocation holds; its cached blocks stay until evicted."""
        self.private_blocks -= allocation.private_blocks
        node = allocation.node
        while node.parent is not None:
            node.references -= 1
            if node.references == 0:
                # Deepest first, so the oldest entry never has a child: it can be evicted from its end.
                self._unreferenced[node] = None
                self.unreferenced_blocks += len(node.hashes)
            node = node.parent

    def clear(self) -> bool:
        """Drop all cached blocks. Returns False, and changes nothing, while requests hold any block."""
        if self.used_blocks:
            return False
        self.cached_blocks = self.unreferenced_blocks = 0
        self._root = _Node(None, [], 0)
        self._unreferenced.clear()
        if self._changes is not None:
            self._changes.append(Cleared())
        return True

    def take_changes(self) -> list[KvChange]:
        """What was stored and removed since the last call, in order. Empty unless changes are recorded."""
        changes = self._changes
        if not changes:
            return []
        self._changes = []
        return changes

    def _walk(self, hashes: Sequence[Hashable], limit: int) -> tuple[_Node, int, int]:
        """The deepest node that matches, how many of its blocks match, and how many match in all."""
        node, matched_in_node, matched = self._root, 0, 0
        while matched < limit and matched_in_node == len(node.hashes):
            child = node.children.get(hashes[matched])
            if child is None:
                break
            node = child
            matched_in_node = _common_length(child.hashes, hashes, matched, limit)
            matched += matched_in_node
        return node, matched_in_node, matched

    def _split(self, node: _Node, length: int) -> _Node:
        """Cut a node in two and return the first part; `node` stays the end of every path that ended in it."""
        parent = node.parent
        assert parent is not None
        head = _Node(parent, node.hashes[:length], node.references)
        parent.children[head.hashes[0]] = head
        node.hashes = node.hashes[length:]
        node.parent = head
        head.children[node.hashes[0]] = node
        return head

    def _reference(self, node: _Node) -> None:
        if node.references == 0:
            self._unreferenced.pop(node, None)
            self.unreferenced_blocks -= len(node.hashes)
        node.references += 1

    def _append(self, allocation: Allocation, hashes: Sequence[Hashable], first_block: int) -> _Node:
        """Add blocks nobody cached yet below the allocation's last node; returns the node they are in."""
        node = allocation.node
        if self._changes is not None:
            parent = node.hashes[-1] if node.hashes else None
            self._changes.append(Stored(allocation.request_id, first_block, parent, tuple(hashes)))
        self.cached_blocks += len(hashes)
        if node.references == 1 and not node.children:
            node.hashes.extend(hashes)
            return node
        child = _Node(node, list(hashes), 1)
        node.children[hashes[0]] = child
        return child

    def _take(self, blocks: int) -> None:
        shortfall = blocks - (self.capacity_blocks - self.private_blocks - self.cached_blocks)
        if shortfall > 0:
            self._evict(shortfall)
        self.private_blocks += blocks

    def _evict(self, blocks: int) -> None:
        removed: list[Hashable] = []
        while len(removed) < blocks:
            node = next(iter(self._unreferenced))
            keep = max(0, len(node.hashes) - (blocks - len(removed)))
            removed += reversed(node.hashes[keep:])
            if keep == 0:
                assert node.parent is not None
                del node.parent.children[node.hashes[0]]
                del self._unreferenced[node]
            del node.hashes[keep:]
        self.cached_blocks -= blocks
        self.unreferenced_blocks -= blocks
        if self._changes is not None:
            self._changes.append(Removed(tuple(removed)))


def _common_length(run: list[Hashable], hashes: Sequence[Hashable], start: int, end: int) -> int:
    """How many blocks of a run equal `hashes[start:end]`, given that the first does.

    Chained hashes that are equal once are equal everywhere before, so the end is found by bisection.
    """
    high = min(len(run), end - start)
    if run[high - 1] == hashes[start + high - 1]:
        return high
    low = 1
    while low + 1 < high:
        middle = (low + high) // 2
        if run[middle - 1] == hashes[start + middle - 1]:
            low = middle
        else:
            high = middle
    return low
