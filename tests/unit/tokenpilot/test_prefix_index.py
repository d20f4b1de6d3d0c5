"""Which instances hold which prefix."""

from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from tokenpilot.policy import prefix_index
from tokenpilot.policy.assumed_cache import AssumedCache
from tokenpilot.policy.prefix_index import PrefixIndex

INSTANCES = ["a", "b", "c"]
BLOCK = st.integers(0, 15)
BLOCKS = st.one_of(
    st.lists(BLOCK, max_size=10),
    st.tuples(BLOCK, BLOCK).map(
        lambda ends: list(range(*ends))
    ),  # a prompt's blocks in order, or some of them
    st.tuples(BLOCK, BLOCK).map(lambda ends: list(range(*ends, -1))),  # evicted leaves first
)
CHANGES = ["store", "remove", "store_offloaded", "remove_offloaded", "replace", "drop", "sweep"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(CHANGES), st.sampled_from(INSTANCES), BLOCKS), max_size=40)
PROMPTS = st.one_of(st.lists(BLOCK, unique=True, max_size=10), st.just(list(range(16))))


@dataclass
class Sets:
    """The same with a set per instance and tier."""

    accelerator: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in INSTANCES})
    offload: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in INSTANCES})

    def apply(self, kind: str, instance: str, blocks: list[int]) -> None:
        tier = self.offload if kind.endswith("offloaded") else self.accelerator
        if kind.startswith("store"):
            tier[instance] |= set(blocks)
        elif kind.startswith("remove"):
            tier[instance] -= set(blocks)
        elif kind != "sweep":
            self.offload[instance] = set()
            self.accelerator[instance] = set(blocks) if kind == "replace" else set()

    def match(self, prompt: list[int]) -> dict[str, int]:
        matched = {}
        for name in INSTANCES:
            either = self.accelerator[name] | self.offload[name]
            while matched.get(name, 0) < len(prompt) and prompt[matched.get(name, 0)] in either:
                matched[name] = matched.get(name, 0) + 1
        return matched

    def offloaded(self, prompt: list[int]) -> dict[str, int]:
        counts = {
            name: len([block for block in prompt[:depth] if block not in self.accelerator[name]])
            for name, depth in self.match(prompt).items()
        }
        return {name: count for name, count in counts.items() if count}


def apply(index: PrefixIndex, kind: str, instance: str, blocks: list[int]) -> None:
    if kind == "sweep":
        index.sweep(len(blocks))
    elif kind == "drop":
        index.drop(instance)
    else:
        getattr(index, kind)(instance, blocks)


@given(OPERATIONS, PROMPTS, st.sampled_from([0, 3, 10_000]))
def test_it_answers_what_sets_per_instance_would(
    operations: list[tuple[str, str, list[int]]], prompt: list[int], swept_by_a_drop: int
):
    index, unasked, sets = PrefixIndex(), PrefixIndex(), Sets()
    with patch.object(prefix_index, "SWEEP_BLOCKS", swept_by_a_drop):
        for operation in operations:
            apply(index, *operation)
            apply(unasked, *operation)
            sets.apply(*operation)
            assert index.match(prompt) == sets.match(prompt)
    assert unasked.match(prompt) == sets.match(prompt), "lookups change nothing but the cost of later ones"
    assert index.offloaded(prompt, index.match(prompt)) == sets.offloaded(prompt)
    for name in INSTANCES:
        assert index.blocks_of(name) == len(sets.accelerator[name]) + len(sets.offload[name])
    while index.sweep():
        pass
    assert index.match(prompt) == sets.match(prompt)
    assert len(index) == sum(len(set().union(*tier.values())) for tier in (sets.accelerator, sets.offload))


@given(st.lists(st.tuples(st.integers(0, 79), st.integers(0, 12)), max_size=200), st.booleans())
def test_many_instances_get_their_own_depths(stored: list[tuple[int, int]], offload: bool):
    index, prompt = PrefixIndex(), list(range(100, 112))
    expected: dict[str, int] = {}
    for number, depth in [*((number, 5) for number in range(60)), *stored]:
        name = f"instance-{number}"
        index.store(name, prompt[:depth])
        expected[name] = max(expected.get(name, 0), depth)
    if offload:
        index.store_offloaded("instance-1", prompt)
        expected["instance-1"] = len(prompt)
    assert index.match(prompt) == {name: depth for name, depth in expected.items() if depth}
    assert index.match(prompt) == index.match(list(prompt)), (
        "what is remembered of the first answer is intact"
    )


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


def test_dropping_a_large_instance_ends_its_claims_at_once_and_frees_its_blocks_bit_by_bit():
    index, blocks = PrefixIndex(), list(range(50_000))
    index.store("a", blocks)
    index.store("b", blocks[:3])
    index.drop("a")
    assert index.match(blocks) == {"b": 3}
    assert index.blocks_of("a") == 0
    slices = 1
    while index.sweep(5_000):
        assert index.match(blocks) == {"b": 3}
        slices += 1
    assert slices > 5, "no call did all the work"
    assert len(index) == 3


def test_an_instance_that_restarts_for_ever_takes_no_more_room():
    index = PrefixIndex()
    for _ in range(100):
        index.store("a", range(100))
        index.drop("a")
    index.store("b", [1])
    assert len(index) == 1
    assert len(index._lives._instances) < 5, "bits are used again"


def test_a_block_in_either_tier_belongs_to_the_prefix_and_counts_once():
    index = PrefixIndex()
    index.store("a", [1, 2, 5])
    index.store_offloaded("a", [2, 3, 4])
    prompt = [1, 2, 3, 4, 5, 6]
    assert index.match(prompt) == {"a": 5}
    assert index.offloaded(prompt, {"a": 5}) == {"a": 2}, "blocks 3 and 4 must be restored, 2 need not"
    assert index.offloaded(prompt, {"a": 3, "unknown": 2}) == {"a": 1}, "of the first three"


def test_a_prefix_may_go_on_in_another_tier_at_one_instance_only():
    index = PrefixIndex()
    index.store("a", [1, 2])
    index.store("b", [1])
    index.store_offloaded("b", [2, 3])
    assert index.match([1, 2, 3]) == {"a": 2, "b": 3}
    assert index.offloaded([1, 2, 3], {"a": 2, "b": 3}) == {"b": 2}


def test_evicting_from_one_tier_leaves_the_other():
    index = PrefixIndex()
    index.store("a", [1])
    index.store_offloaded("a", [1])
    index.remove("a", [1])
    assert index.match([1]) == {"a": 1}
    index.remove_offloaded("a", [1])
    assert index.match([1]) == {}
    assert len(index) == 0


def test_without_offloading_nothing_is_counted_for_it():
    index = PrefixIndex()
    index.store("a", [1, 2])
    assert index.offloaded([1, 2], index.match([1, 2])) == {}


def test_without_events_the_least_recently_routed_blocks_are_assumed_evicted_leaves_first():
    cache = AssumedCache(capacity_blocks=3)
    assert cache.routed([1, 2, 3]) == []
    assert cache.routed([1, 9]) == [3]


@given(st.lists(st.lists(BLOCK, max_size=8, unique=True), max_size=20))
def test_what_an_assumed_cache_evicts_leaves_the_index(prompts: list[list[int]]):
    cache, index = AssumedCache(capacity_blocks=5), PrefixIndex()
    for prompt in prompts:
        index.store("a", prompt)
        index.remove("a", cache.routed(prompt))
        assert index.blocks_of("a") == len(cache) <= 5


def test_it_keeps_what_other_sites_may_be_told_of_through_eviction_in_both_tiers_and_drops():
    index = PrefixIndex()
    index.store("a", range(1, 100))
    index.store_offloaded("a", range(60, 70))
    assert index.told_of("a") == {32, 64, 96}
    index.remove("a", range(1, 100))
    assert index.told_of("a") == {64}
    index.drop("a")
    assert index.told_of("a") == set()
