"""Following KV deltas."""

from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.blocks import pack
from tokenfleet.contracts.fleet import KvDelta, KvSnapshot
from tokenpilot.policy.kv_follower import MAX_HELD_DELTAS, SILENT_S, SLICE_BYTES, KvFollower
from tokenpilot.policy.prefix_index import PrefixIndex

NOW_S = 100.0


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


class Followed:
    """An instance's index and its follower, at one moment in time."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.follower = KvFollower("a")

    def delta(self, delta: KvDelta) -> bool:
        return self.follower.delta(self.index, delta, NOW_S)

    def snapshot(self, snapshot: KvSnapshot) -> bool:
        return self.follower.snapshot(self.index, snapshot, NOW_S)

    def depth(self, *blocks: int) -> int:
        return self.index.match(blocks).get("a", 0)

    @property
    def quality(self) -> str:
        return self.follower.quality(NOW_S)


def test_deltas_in_order_are_applied():
    a = Followed()
    assert not a.delta(delta(1, [1, 2]))
    assert not a.delta(delta(2, [3], removed=[2]))
    assert a.depth(1, 2) == 1
    assert a.index.blocks_of("a") == 2
    assert a.quality == "exact"


def test_a_lost_delta_empties_the_instance_and_asks_for_a_snapshot_once():
    a = Followed()
    a.delta(delta(1, [1]))
    assert a.delta(delta(3, [3]))
    assert a.index.blocks_of("a") == 0, "rather cold than wrong"
    assert a.quality == "degraded"
    assert not a.delta(delta(4, [4])), "already asked"
    assert not a.snapshot(snapshot(3, [1, 2, 3]))
    assert a.depth(1, 2, 3, 4) == 4, "deltas held meanwhile are applied"
    assert a.quality == "exact"


def test_a_repeated_delta_changes_nothing():
    a = Followed()
    a.delta(delta(1, [1, 2]))
    a.delta(delta(2, [], removed=[2]))
    assert not a.delta(delta(1, [1, 2]))
    assert a.depth(1, 2) == 1
    assert a.quality == "exact"


def test_deltas_in_the_wrong_order_are_a_gap_that_the_snapshot_closes():
    a = Followed()
    a.delta(delta(1, [1]))
    assert a.delta(delta(3, [], removed=[2]))
    assert not a.delta(delta(2, [2]))
    a.snapshot(snapshot(3, [1]))
    assert a.depth(1, 2) == 1, "the late one is older than the snapshot"
    assert not a.delta(delta(4, [2]))
    assert a.depth(1, 2) == 2


def test_a_restarted_engine_starts_from_nothing_and_a_late_delta_of_the_old_one_is_ignored():
    a = Followed()
    a.delta(delta(1, [1, 2]))
    assert not a.delta(delta(1, [7], generation=2))
    assert a.depth(1) == 0
    assert not a.delta(delta(2, [1], generation=1))
    assert a.depth(1) == 0
    assert a.depth(7) == 1
    assert a.quality == "exact"


def test_a_restart_whose_first_delta_was_lost_is_a_gap():
    a = Followed()
    a.delta(delta(1, [1]))
    assert a.delta(delta(2, [8], generation=2))
    assert (a.depth(1), a.quality) == (0, "degraded")
    a.snapshot(snapshot(2, [7, 8], generation=2))
    assert (a.depth(7, 8), a.quality) == (2, "exact")


def test_an_engine_that_restarts_while_its_snapshot_is_on_its_way_is_followed_into_its_new_life():
    a = Followed()
    a.delta(delta(1, [1]))
    a.delta(delta(3, [3]))
    a.delta(delta(1, [7], generation=2))
    assert not a.snapshot(snapshot(3, [1, 2, 3]))
    assert (a.depth(1), a.depth(7), a.quality) == (0, 1, "exact")


def test_a_snapshot_older_than_what_was_missed_is_not_enough():
    a = Followed()
    a.delta(delta(1, [1]))
    a.delta(delta(5, [5]))
    assert a.snapshot(snapshot(3, [1, 2, 3])), "delta 4 is in neither"
    assert (a.depth(1), a.quality) == (0, "degraded")
    assert not a.snapshot(snapshot(5, [1, 2, 3, 4, 5]))
    assert (a.depth(1, 2, 3, 4, 5), a.quality) == (5, "exact")


def test_a_snapshot_that_takes_for_ever_is_asked_for_again():
    a = Followed()
    a.delta(delta(1, [1]))
    a.delta(delta(3, []))
    for sequence in range(4, MAX_HELD_DELTAS + 10):
        a.delta(delta(sequence, []))
    assert len(a.follower.held) == MAX_HELD_DELTAS
    assert a.snapshot(snapshot(3, [1]))
    assert a.quality == "degraded"


def test_clearing_the_cache_empties_both_tiers_before_what_follows_in_the_same_delta():
    a = Followed()
    a.delta(KvDelta(instance="a", generation=1, sequence=1, stored=pack([1]), stored_offloaded=pack([2])))
    assert a.depth(1, 2) == 2
    a.delta(KvDelta(instance="a", generation=1, sequence=2, stored=pack([2]), cleared=True))
    assert (a.depth(1), a.depth(2)) == (0, 1)
    assert a.index.blocks_of("a") == 1
    assert a.quality == "exact"


def test_blocks_move_between_the_tiers():
    a = Followed()
    a.delta(KvDelta(instance="a", generation=1, sequence=1, stored=pack([1, 2])))
    a.delta(KvDelta(instance="a", generation=1, sequence=2, removed=pack([2]), stored_offloaded=pack([1, 2])))
    assert a.depth(1, 2) == 2
    assert a.index.offloaded([1, 2], {"a": 2}) == {"a": 1}
    a.delta(KvDelta(instance="a", generation=1, sequence=3, removed_offloaded=pack([1, 2])))
    assert a.depth(1, 2) == 1


def test_a_snapshot_brings_both_tiers_and_replaces_both():
    a = Followed()
    a.delta(KvDelta(instance="a", generation=1, sequence=1, stored=pack([8]), stored_offloaded=pack([9])))
    a.delta(delta(3, []))
    whole = KvSnapshot(
        instance="a", generation=1, sequence=3, blocks=pack([1]), offloaded=pack([2]), complete=True
    )
    a.snapshot(whole)
    assert (a.depth(1, 2), a.depth(8), a.depth(9)) == (2, 0, 0)
    assert a.index.offloaded([1, 2], {"a": 2}) == {"a": 1}


def test_deltas_that_arrive_while_a_large_snapshot_is_loaded_come_after_it():
    a, many = Followed(), list(range(3 * SLICE_BYTES // 8))
    a.follower.waiting_for_snapshot = True
    for pauses, _ in enumerate(a.follower.loading(a.index, snapshot(5, many), NOW_S), start=6):
        assert a.quality == "degraded"
        a.delta(delta(pauses, [10_000_000 + pauses], removed=[pauses]))
    assert a.index.blocks_of("a") == len(many)
    assert a.depth(10_000_006) == 1
    assert a.depth(6) == 0, "not stored again by the snapshot"
    assert a.quality == "exact"


def test_an_agent_that_missed_events_says_so_until_it_has_caught_up():
    a = Followed()
    a.delta(delta(1, [1]))
    a.delta(KvDelta(instance="a", generation=1, sequence=2, complete=False))
    assert (a.depth(1), a.quality) == (1, "degraded"), "what is known is kept"
    a.delta(delta(3, [2]))
    assert a.quality == "exact"
    incomplete = KvSnapshot(instance="a", generation=1, sequence=5, blocks=b"", complete=False)
    a.delta(delta(5, []))
    a.snapshot(incomplete)
    assert a.quality == "degraded"


def test_an_instance_not_heard_of_for_two_heartbeats_is_degraded_until_it_is():
    a = Followed()
    a.delta(delta(1, [1]))
    assert a.follower.quality(NOW_S + SILENT_S) == "exact"
    assert a.follower.quality(NOW_S + SILENT_S + 0.1) == "degraded"
    late_s = NOW_S + 60
    a.follower.delta(a.index, delta(2, []), late_s)
    assert a.follower.quality(late_s) == "exact", "nothing was lost meanwhile"


def test_a_joining_instance_is_degraded_until_its_snapshot_is_there():
    a = Followed()
    a.follower.waiting_for_snapshot = True
    assert not a.delta(delta(9, [9]))
    assert a.quality == "degraded"
    a.snapshot(snapshot(8, [7, 8]))
    assert (a.depth(7, 8, 9), a.quality) == (3, "exact")


@given(st.data())
def test_lost_repeated_and_late_deltas_end_in_the_true_content(data: st.DataObject):
    a = Followed()
    truth: set[int] = set()
    states: dict[int, list[int]] = {0: []}
    sent: list[KvDelta] = []
    for sequence in range(1, 12):
        stored = data.draw(st.lists(st.integers(0, 9), max_size=3))
        removed = [block for block in data.draw(st.lists(st.integers(0, 9), max_size=2)) if block in truth]
        truth = (truth - set(removed)) | set(stored)
        states[sequence] = sorted(truth)
        sent.append(delta(sequence, stored, removed))
        for arrived in data.draw(st.lists(st.sampled_from(sent[-3:]), max_size=3)):
            if a.delta(arrived):
                a.snapshot(snapshot(sequence, states[sequence]))
    if a.delta(delta(12, [])):
        a.snapshot(snapshot(12, states[11]))
    assert {block for block in range(10) if a.depth(block)} == truth
    assert a.quality == "exact"
