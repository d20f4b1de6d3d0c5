"""What lies on the accelerator is told apart from what is offloaded, and counted once whatever reports it."""

import pytest

from node_agent.policy.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from node_agent.policy.kv_index import KvIndex
from tokenfleet.blocks import HASH_BYTES, BlockHasher, id_tokens

BLOCK = 4
HASHER = BlockHasher(b"secret")
TOKENS = list(range(100, 116))


def new_index(**options: int) -> KvIndex:
    return KvIndex("engine", 1, HASHER, BLOCK, **options)


def feed(index: KvIndex, *events: Event, source: int = 0, rank: int = 0) -> None:
    index.apply(EventBatch(events=events, rank=rank), source)


def stored(*hashes: int, parent: int | None = None, group: int = 0, kind: str | None = None) -> BlockStored:
    """Blocks 1, 2, 3 ... of the one prompt, on the accelerator."""
    first = hashes[0] - 1
    return BlockStored(
        block_hashes=list(hashes),
        parent_block_hash=parent,
        token_ids=TOKENS[first * BLOCK : (first + len(hashes)) * BLOCK],
        block_size=BLOCK,
        medium="GPU",
        group_idx=group,
        kv_cache_spec_kind=kind,
    )


def offloaded(*hashes: int, medium: str = "CPU", group: int = 0) -> BlockStored:
    """As vLLM's offloading connector says it: hashes and nothing else."""
    return BlockStored(block_hashes=list(hashes), medium=medium, group_idx=group)


def removed(*hashes: int, medium: str = "GPU", group: int = 0) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), medium=medium, group_idx=group)


def names(packed: bytes) -> list[int]:
    """Blocks of the one prompt by their number in it."""
    own = HASHER.chain(id_tokens(TOKENS), BLOCK)
    return sorted(
        own.index(packed[at : at + HASH_BYTES]) // HASH_BYTES + 1 for at in range(0, len(packed), 8)
    )


def tiers(index: KvIndex) -> tuple[list[int], list[int]]:
    snapshot = index.snapshot()
    return names(snapshot.blocks), names(snapshot.offloaded)


class TestTiers:
    def test_a_block_may_be_in_both_and_leaves_each_by_itself(self) -> None:
        index = new_index()
        feed(index, stored(1, 2), offloaded(1, 2))
        assert tiers(index) == ([1, 2], [1, 2])
        feed(index, removed(1, 2))
        assert tiers(index) == ([], [1, 2])
        feed(index, stored(1, 2), removed(2, medium="CPU"))
        assert tiers(index) == ([1, 2], [1])
        assert (len(index), index.offloaded) == (2, 1)

    def test_deltas_say_which_tier_changed(self) -> None:
        index = new_index()
        feed(index, stored(1, 2), offloaded(1))
        (delta,) = index.deltas()
        assert (names(delta.stored), names(delta.stored_offloaded)) == ([1, 2], [1])
        feed(index, removed(1), offloaded(2), removed(1, medium="CPU"))
        (delta,) = index.deltas()
        assert (names(delta.stored), names(delta.removed)) == ([], [1])
        assert (names(delta.stored_offloaded), names(delta.removed_offloaded)) == ([2], [1])

    @pytest.mark.parametrize(
        "medium", ["CPU", "cpu", "STORAGE", "DISK", "CPU_PINNED", "CPU_TIER1", "FS", "a word of tomorrow"]
    )
    def test_every_medium_but_the_accelerator_is_offloaded(self, medium: str) -> None:
        index = new_index()
        feed(index, stored(1), offloaded(1, medium=medium), removed(1))
        assert tiers(index) == ([], [1])
        feed(index, removed(1, medium=medium))
        assert tiers(index) == ([], [])

    @pytest.mark.parametrize("medium", ["GPU", "gpu", None])
    def test_the_accelerator_is_called_gpu_or_nothing(self, medium: str | None) -> None:
        index = new_index()
        feed(index, stored(1), BlockRemoved(block_hashes=[1], medium=medium))
        assert tiers(index) == ([], [])

    def test_memory_and_disk_are_counted_each(self) -> None:
        index = new_index()
        feed(index, stored(1), offloaded(1), offloaded(1, medium="STORAGE"), removed(1, medium="CPU"))
        assert tiers(index) == ([1], [1])
        feed(index, removed(1, medium="STORAGE"))
        assert tiers(index) == ([1], [])

    def test_overlapping_chunks_announce_and_drop_a_block_twice(self) -> None:
        index = new_index()
        feed(index, stored(1, 2, 3), offloaded(1, 2), offloaded(1, 3), removed(1, 2, medium="CPU"))
        assert tiers(index)[1] == [1, 3]
        feed(index, removed(1, 3, medium="CPU"))
        assert tiers(index)[1] == []

    def test_an_offloaded_block_is_never_named_by_its_own_tokens(self) -> None:
        # Such events leave the salt, the images and the adapter out: the same tokens could be another block.
        index = new_index()
        salted = BlockStored(block_hashes=[1], token_ids=TOKENS[:4], block_size=BLOCK, extra_keys=[["salt"]])
        unsalted = BlockStored(block_hashes=[1], token_ids=TOKENS[:4], block_size=BLOCK, medium="CPU")
        feed(index, salted, unsalted)
        assert tiers(index) == ([], [])
        assert index.ignored == {"extra_keys": 1, "offloaded_unknown": 1}

    def test_clearing_empties_both(self) -> None:
        index = new_index()
        feed(index, stored(1, 2), offloaded(1))
        index.deltas()
        feed(index, AllBlocksCleared())
        (delta,) = index.deltas()
        assert delta.cleared
        assert tiers(index) == ([], [])

    def test_a_connector_that_never_reports_removals_is_forgotten_by_age(self) -> None:
        index = new_index(offloaded_limit_blocks=2)
        feed(index, stored(1, 2, 3), offloaded(1), offloaded(2), offloaded(1), offloaded(3))
        assert tiers(index) == ([1, 2, 3], [1, 3])
        feed(index, removed(1, 2, 3))
        assert tiers(index) == ([], [1, 3])


class TestAttentionGroups:
    """Hybrid models store a block once for each group of layers; only full attention shows a whole prefix."""

    def test_a_block_of_two_groups_is_one_block_and_held_while_both_hold_it(self) -> None:
        index = new_index()
        for group in (0, 1):
            feed(index, stored(1, 2, group=group, kind="full_attention"))
        assert tiers(index) == ([1, 2], [])
        feed(index, removed(2, group=1))
        assert tiers(index) == ([1], []), "half of block 2 is of no use"
        feed(index, removed(2, group=0))
        assert tiers(index) == ([1], [])

    @pytest.mark.parametrize(
        "kind",
        [
            "sliding_window",
            "sliding_window_mla",
            "mamba",
            "chunked_local_attention",
            "cross_attention",
            "unknown",
        ],
    )
    def test_other_kinds_show_nothing(self, kind: str) -> None:
        index = new_index()
        feed(index, stored(1, 2, group=0, kind="full_attention"), stored(1, 2, group=1, kind=kind))
        feed(index, removed(1, 2, group=0))
        assert tiers(index) == ([], [])
        assert index.ignored == {"attention_kind": 2}

    @pytest.mark.parametrize("kind", ["full_attention", "mla_attention", "sink_full_attention", None])
    def test_full_kinds_do(self, kind: str | None) -> None:
        index = new_index()
        feed(index, stored(1, 2, kind=kind))
        assert tiers(index) == ([1, 2], [])

    def test_a_groups_kind_is_remembered_for_events_that_do_not_say_it(self) -> None:
        index = new_index()
        feed(index, stored(1, 2, kind="full_attention"), stored(1, 2, group=1, kind="sliding_window"))
        feed(index, offloaded(1, 2, group=1))
        assert tiers(index) == ([1, 2], [])
        feed(index, offloaded(1, group=0))
        assert tiers(index) == ([1, 2], [1])

    def test_parts_on_two_ranks_are_no_block(self) -> None:
        index = new_index(sources=2)
        feed(index, stored(1, group=0), source=0)
        feed(index, stored(1, group=1), source=0)
        feed(index, stored(1, group=0), source=1, rank=1)
        feed(index, removed(1, group=0), source=0)
        assert tiers(index) == ([], [])


class TestRanks:
    def test_a_block_stays_while_any_rank_holds_it(self) -> None:
        index = new_index(sources=2)
        feed(index, stored(1, 2), source=0)
        feed(index, stored(1), source=1, rank=1)
        feed(index, removed(1, 2), source=0)
        assert tiers(index) == ([1], [])
        feed(index, removed(1), source=1, rank=1)
        assert tiers(index) == ([], [])

    def test_a_source_that_lost_its_place_forgets_only_its_own(self) -> None:
        index = new_index(sources=2)
        feed(index, stored(1, 2), offloaded(1, 2), source=0)
        feed(index, stored(1, 2, 3), source=1, rank=1)
        index.deltas()
        index.forget(0)
        assert tiers(index) == ([1, 2, 3], [])
        (delta,) = index.deltas()
        assert not delta.cleared
        assert names(delta.removed_offloaded) == [1, 2]


class TestComplete:
    """`complete` is the fleet's mark of an exact index: see `KvIndex.complete`."""

    def test_nothing_is_known_of_a_source_before_its_beginning_was_seen(self) -> None:
        index = new_index(sources=2)
        assert not index.complete
        index.whole(0)
        assert not index.complete
        index.whole(1)
        assert index.complete
        assert index.snapshot().complete

    def test_a_loss_and_its_end_are_told_at_once_although_no_block_changed(self) -> None:
        index = new_index()
        assert [delta.complete for delta in index.deltas()] == [False]
        index.whole(0)
        assert [delta.complete for delta in index.deltas()] == [True]
        assert index.deltas() == []
        index.lost(0)
        assert [delta.complete for delta in index.deltas()] == [False]
        assert not index.snapshot().complete

    def test_a_parent_never_reported_is_a_loss_until_the_cache_is_cleared(self) -> None:
        index = new_index()
        index.whole(0)
        feed(index, stored(2, 3, parent=1))
        assert not index.complete
        assert tiers(index) == ([], [])
        feed(index, AllBlocksCleared())
        assert index.complete
        feed(index, stored(1), stored(2, parent=1))
        assert tiers(index) == ([1, 2], [])
        assert index.complete

    def test_what_is_left_out_on_purpose_and_its_children_are_no_loss(self) -> None:
        index = new_index()
        index.whole(0)
        feed(
            index,
            BlockStored(block_hashes=[1], token_ids=TOKENS[:4], block_size=BLOCK, extra_keys=[["salt"]]),
            stored(2, parent=1),
            stored(3, parent=2),
            BlockStored(block_hashes=[9], token_ids=TOKENS[:8], block_size=8),
            offloaded(77),
        )
        assert tiers(index) == ([], [])
        assert index.complete

    def test_a_clearing_heals_only_its_own_source(self) -> None:
        index = new_index(sources=2)
        feed(index, AllBlocksCleared(), source=0)
        assert not index.complete
        feed(index, AllBlocksCleared(), source=1, rank=1)
        assert index.complete

    def test_another_engine_process_is_unknown_until_its_beginning_was_seen(self) -> None:
        index = new_index()
        index.whole(0)
        index.deltas()
        index.restart(generation=2)
        (delta,) = index.deltas()
        assert (delta.generation, delta.sequence, delta.complete) == (2, 1, False)
        index.whole(0)
        assert index.complete
