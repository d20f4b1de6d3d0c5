"""Following KV deltas."""

from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.blocks import pack
from tokenfleet.contracts.fleet import KvDelta, KvSnapshot
from tokenpilot.policy.kv_follower import KvFollower
from tokenpilot.policy.prefix_index import PrefixIndex


def delta(sequence: int, stored: list[int], removed: list[int] | None = None, generation: int = 1) -> KvDelta:
    return KvDelta(
        instance="a",
        generation=generation,
        sequence=sequence,
        stored=pack(stored),
        removed=pack(removed or []),
    )


def snapshot(sequence: int, blocks: list[int], generation: int = 1) -> KvSnapshot:
    return KvSnapshot(instance="a", generation=generation, sequence=sequence, blocks=pack(blocks))


def test_deltas_in_order_are_applied():
    index, follower = PrefixIndex(), KvFollower("a")
    assert not follower.delta(index, delta(1, [1, 2]))
    assert not follower.delta(index, delta(2, [3], removed=[2]))
    assert index.match([1, 2]) == {"a": 1}
    assert index.blocks_of("a") == 2


def test_a_gap_empties_the_instance_and_asks_for_a_snapshot_once():
    index, follower = PrefixIndex(), KvFollower("a")
    follower.delta(index, delta(1, [1]))
    assert follower.delta(index, delta(3, [3]))
    assert index.blocks_of("a") == 0, "rather cold than wrong"
    assert not follower.delta(index, delta(4, [4])), "already asked"
    follower.snapshot(index, snapshot(3, [1, 2, 3]))
    assert index.match([1, 2, 3, 4]) == {"a": 4}, "deltas held meanwhile are applied"


def test_a_restarted_engine_starts_from_nothing():
    index, follower = PrefixIndex(), KvFollower("a")
    follower.delta(index, delta(1, [1, 2]))
    assert not follower.delta(index, delta(1, [7], generation=2))
    assert index.match([1]) == {}
    assert not follower.delta(index, delta(2, [1], generation=1)), "a late delta of the old process"
    assert index.match([7]) == {"a": 1}


@given(st.data())
def test_lost_and_repeated_deltas_end_in_the_true_content(data: st.DataObject):
    index, follower = PrefixIndex(), KvFollower("a")
    truth: set[int] = set()
    states: dict[int, list[int]] = {0: []}
    for sequence in range(1, 12):
        stored = data.draw(st.lists(st.integers(0, 9), max_size=3))
        removed = [block for block in data.draw(st.lists(st.integers(0, 9), max_size=2)) if block in truth]
        truth = (truth - set(removed)) | set(stored)
        states[sequence] = sorted(truth)
        for _ in range(data.draw(st.sampled_from([0, 1, 1, 1, 2]))):  # lost, delivered, repeated
            if follower.delta(index, delta(sequence, stored, removed)):
                follower.snapshot(index, snapshot(sequence, states[sequence]))
    if follower.delta(index, delta(12, [])):
        follower.snapshot(index, snapshot(12, states[11]))
    assert {block for block in range(10) if index.match([block])} == truth
