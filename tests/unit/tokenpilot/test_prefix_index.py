"""Which instances hold which prefix."""

from hypothesis import given
from hypothesis import strategies as st

from tokenpilot.policy.prefix_index import AssumedCache, PrefixIndex

INSTANCES = ["a", "b", "c"]
BLOCKS = st.lists(st.integers(0, 12), max_size=8)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["store", "remove", "drop", "replace"]), st.sampled_from(INSTANCES), BLOCKS),
    max_size=30,
)


@given(OPERATIONS, st.lists(st.integers(0, 12), unique=True, max_size=8))
def test_it_answers_what_sets_per_instance_would(
    operations: list[tuple[str, str, list[int]]], prompt: list[int]
):
    index = PrefixIndex()
    held: dict[str, set[int]] = {name: set() for name in INSTANCES}
    for kind, instance, blocks in operations:
        if kind == "store":
            index.store(instance, blocks)
            held[instance] |= set(blocks)
        elif kind == "remove":
            index.remove(instance, blocks)
            held[instance] -= set(blocks)
        elif kind == "drop":
            index.drop(instance)
            held[instance].clear()
        else:
            index.replace(instance, blocks)
            held[instance] = set(blocks)
    expected = {}
    for instance, blocks_held in held.items():
        depth = 0
        while depth < len(prompt) and prompt[depth] in blocks_held:
            depth += 1
        if depth:
            expected[instance] = depth
    assert index.match(prompt) == expected
    assert len(index) == len(set().union(*held.values()))


def test_a_gap_ends_the_prefix():
    index = PrefixIndex()
    index.store("a", [1, 2, 4])
    assert index.match([1, 2, 3, 4]) == {"a": 2}


def test_a_dropped_instance_leaves_nothing_to_its_successor():
    index = PrefixIndex()
    index.store("a", [1, 2])
    index.drop("a")
    index.store("b", [9])
    assert index.match([1, 2]) == {}
    assert len(index) == 1


def test_without_events_the_least_recently_routed_blocks_are_assumed_evicted_leaves_first():
    cache = AssumedCache(capacity_blocks=3)
    assert cache.routed([1, 2, 3]) == []
    assert cache.routed([1, 9]) == [3]
