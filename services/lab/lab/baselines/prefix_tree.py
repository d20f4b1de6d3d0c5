"""A radix tree over prompts' block hashes that remembers who holds which prefix, as approximate routers keep one.

Hashes are chained, so equal hashes mean equal whole prefixes and a comparison is a bisection. A node refers to a
range of the prompt it was made from and copies nothing: an insertion costs as much as there are branches on its way,
whatever the number of blocks. Holders are instances (or sites); each comes with a number whose meaning is the user's:
the time of its last use, or how many requests refer to it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

Blocks = Sequence[int]


class Node:
    """The blocks `start` to `end` of a prompt, below the node that holds those before."""

    __slots__ = ("blocks", "children", "end", "holders", "parent", "start", "stats")

    def __init__(self, parent: "Node | None", blocks: Blocks, start: int, end: int) -> None:
        self.parent = parent
        self.blocks = blocks
        self.start = start
        self.end = end
        self.children: dict[int, Node] = {}
        self.holders: dict[str, float] = {}
        self.stats: Any = None
        """Room for what a user keeps for each node; both parts of a node that is cut refer to the same."""

    def __len__(self) -> int:
        return self.end - self.start

    def path(self) -> Iterator["Node"]:
        """This node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixTree:
    """Prompts, as paths of nodes."""

    def __init__(self) -> None:
        self.root = Node(None, (), 0, 0)

    def walk(self, blocks: Blocks) -> tuple[Node, int]:
        """The deepest node that a prompt shares blocks with, and how many blocks it shares in all."""
        node, matched = self.root, 0
        while matched == node.end and matched < len(blocks):
            child = node.children.get(blocks[matched])
            if child is None:
                break
            matched = _common_end(child, blocks)
            node = child
        return node, matched

    def insert(self, blocks: Blocks) -> tuple[Node, Node | None]:
        """Make room for a prompt.

        Returns the node it ends in (the root for a prompt without full blocks), and the upper part of the node that
        had to be cut for it, if one was; the lower part keeps its identity.
        """
        node, matched = self.walk(blocks)
        head = None
        if matched < node.end:
            node = head = self._split(node, matched)
        if matched < len(blocks):
            leaf = Node(node, blocks, matched, len(blocks))
            node.children[blocks[matched]] = leaf
            return leaf, head
        return node, head

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, each before those below it."""
        unseen = [*self.root.children.values()]
        while unseen:
            node = unseen.pop()
            yield node
            unseen.extend(node.children.values())

    def prune(self, node: Node) -> Node:
        """Remove a node that has no children; returns the one above."""
        parent = node.parent
        assert parent is not None and not node.children
        del parent.children[node.blocks[node.start]]
        return parent

    def _split(self, node: Node, at: int) -> Node:
        parent = node.parent
        assert parent is not None
        head = Node(parent, node.blocks, node.start, at)
        head.holders = dict(node.holders)
        head.stats = node.stats
        parent.children[node.blocks[node.start]] = head
        head.children[node.blocks[at]] = node
        node.start, node.parent = at, head
        return head


class HeldPrefixes(PrefixTree):
    """A tree whose holders are marked with when they last used a node: whoever holds a node holds those above."""

    def __init__(self) -> None:
        super().__init__()
        self.held_blocks: dict[str, int] = {}
        """How many blocks each holder has."""
        self._held: dict[str, dict[Node, None]] = {}
        self._uses = 0

    def add_holder(self, holder: str) -> None:
        self.held_blocks.setdefault(holder, 0)
        self._held.setdefault(holder, {})

    def drop_holder(self, holder: str) -> None:
        """Forget everything about a holder."""
        for node in list(self._held.get(holder, ())):
            self._release(node, holder)
        self._held.pop(holder, None)
        self.held_blocks.pop(holder, None)

    def hold(self, blocks: Blocks, holder: str) -> Node:
        """A prompt went to this holder. Returns the node it ends in."""
        self._uses += 1
        leaf, head = self.insert(blocks)
        if head is not None:
            for name in head.holders:
                self._held[name][head] = None
        held = self._held[holder]
        for node in leaf.path():
            if holder not in node.holders:
                self.held_blocks[holder] += len(node)
                held[node] = None
            node.holders[holder] = self._uses
        return leaf

    def matches(self, blocks: Blocks) -> dict[str, int]:
        """For each holder, how many leading blocks of a prompt it holds. Holders of none are left out."""
        node, matched = self.walk(blocks)
        found: dict[str, int] = {}
        for above in node.path():
            depth = min(above.end, matched)
            for holder in above.holders:
                found.setdefault(holder, depth)
        return found

    def evict(self, holder: str, most_blocks: int) -> None:
        """Take from a holder what it used longest ago, the end of a prefix before its start."""
        excess = self.held_blocks[holder] - most_blocks
        if excess <= 0:
            return
        # A node was used no later than the one above it, so this order never leaves a gap.
        oldest = sorted(self._held[holder], key=lambda node: (node.holders[holder], -node.start))
        for node in oldest:
            excess -= len(node)
            self._release(node, holder)
            if excess <= 0:
                return

    def _release(self, node: Node, holder: str) -> None:
        del node.holders[holder]
        del self._held[holder][node]
        self.held_blocks[holder] -= len(node)
        while node.parent is not None and not node.holders and not node.children:
            node = self.prune(node)


def _common_end(node: Node, blocks: Blocks) -> int:
    """Where a node and a prompt part, given that they share the node's first block."""
    own, low, high = node.blocks, node.start, min(node.end, len(blocks)) - 1
    if own[high] == blocks[high]:
        return high + 1
    while low + 1 < high:
        middle = (low + high) // 2
        if own[middle] == blocks[middle]:
            low = middle
        else:
            high = middle
    return low + 1
