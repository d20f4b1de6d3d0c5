"""The radix tree of approximate routers, against the plain definition."""

from hypothesis import given
from hypothesis import strategies as st
from unit.lab_baselines.small_fleet import prompt

from lab.baselines.prefix_tree import HeldPrefixes, PrefixTree

PARTS = st.lists(st.tuples(st.sampled_from("pqr"), st.integers(1, 4)), max_size=4)
PROMPTS = st.lists(st.tuples(PARTS, st.sampled_from("abc")), max_size=25)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(1 for x, y in zip(one, other, strict=False) if x == y)  # chained: equal only as prefixes


@given(PROMPTS, PARTS)
def test_a_holder_matches_the_longest_prefix_it_was_sent(sent, asked) -> None:
    tree = HeldPrefixes()
    for name in "abc":
        tree.add_holder(name)
    for parts, holder in sent:
        tree.hold(prompt(*parts), holder)
    blocks = prompt(*asked)
    expected = {
        name: max((common(prompt(*parts), blocks) for parts, holder in sent if holder == name), default=0)
        for name in "abc"
    }
    assert tree.matches(blocks) == {name: depth for name, depth in expected.items() if depth}
    for name in "abc":
        distinct = {block for parts, holder in sent if holder == name for block in prompt(*parts)}
        assert tree.held_blocks[name] == len(distinct)


@given(PROMPTS, st.integers(0, 8))
def test_eviction_keeps_within_the_limit_and_leaves_whole_prefixes(sent, most) -> None:
    tree = HeldPrefixes()
    for name in "abc":
        tree.add_holder(name)
    for parts, holder in sent:
        tree.hold(prompt(*parts), holder)
        tree.evict(holder, most)
        assert tree.held_blocks[holder] <= most
    for node in tree.nodes():
        assert node.holders or node.children
        if node.parent is not tree.root:
            assert set(node.holders) <= set(node.parent.holders)
    for name in "abc":
        assert tree.held_blocks[name] == sum(len(node) for node in tree.nodes() if name in node.holders)
        tree.drop_holder(name)
    assert not tree.root.children


def test_what_was_used_longest_ago_goes_first() -> None:
    tree = HeldPrefixes()
    tree.add_holder("a")
    old, new = prompt(("old", 5)), prompt(("new", 5))
    tree.hold(old, "a")
    tree.hold(new, "a")
    tree.hold(old, "a")
    tree.evict("a", 5)
    assert tree.matches(old) == {"a": 5}
    assert tree.matches(new) == {}


def test_a_cut_keeps_the_lower_part_and_returns_the_upper() -> None:
    tree = PrefixTree()
    lower, head = tree.insert(prompt(("p", 4), ("q", 4)))
    assert head is None
    leaf, head = tree.insert(prompt(("p", 4), ("r", 2)))
    assert head is not None
    assert (head.start, head.end, lower.start, lower.end, leaf.start, leaf.end) == (0, 4, 4, 8, 4, 6)
    assert [*lower.path()] == [lower, head] and [*leaf.path()] == [leaf, head]
