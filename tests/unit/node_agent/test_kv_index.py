"""The index names an engine's blocks as ingress names a prompt's, and its deltas add up to its snapshot."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.policy.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from node_agent.policy.kv_index import MAX_DELTA_BLOCKS, KvIndex
from tokenfleet.blocks import HASH_BYTES, BlockHasher
from tokenfleet.contracts.fleet import KvDelta

BLOCK = 4
HASHER = BlockHasher(b"secret")


def new_index() -> KvIndex:
    index = KvIndex("engine", 1, HASHER, BLOCK)
    index.whole(0)
    return index


def feed(index: KvIndex, *events: Event, rank: int = 0) -> None:
    index.apply(EventBatch(events=events, rank=rank))


def own_hashes(tokens: Sequence[int], adapter: str = "") -> list[bytes]:
    packed = HASHER.chain(np.array(tokens, dtype=np.uint32), BLOCK, adapter)
    return split(packed)


def split(packed: bytes) -> list[bytes]:
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)]


def stored(
    hashes: Sequence[int | bytes],
    tokens: Sequence[int],
    parent: int | bytes | None = None,
    medium: str | None = None,
    lora_name: str | None = None,
) -> BlockStored:
    return BlockStored(
        block_hashes=list(hashes),
        parent_block_hash=parent,
        token_ids=list(tokens),
        block_size=BLOCK,
        medium=medium,
        lora_name=lora_name,
    )


def blocks(index: KvIndex) -> set[bytes]:
    return set(split(index.snapshot().blocks))


class Reader:
    """Applies deltas as the contract says: cleared, then removed, then stored."""

    def __init__(self) -> None:
        self.blocks: set[bytes] = set()
        self.offloaded: set[bytes] = set()
        self.complete = True
        self.sequence = 0

    def apply(self, delta: KvDelta) -> None:
        assert delta.sequence == self.sequence + 1
        self.sequence = delta.sequence
        self.complete = delta.complete
        if delta.cleared:
            self.blocks.clear()
            self.offloaded.clear()
        self.blocks -= set(split(delta.removed))
        self.blocks |= set(split(delta.stored))
        self.offloaded -= set(split(delta.removed_offloaded))
        self.offloaded |= set(split(delta.stored_offloaded))


TOKENS = list(range(100, 112))


class TestNaming:
    def test_blocks_are_named_as_ingress_names_the_prompt(self) -> None:
        index = new_index()
        feed(index, stored([1, 2], TOKENS[:8]), stored([3], TOKENS[8:], parent=2))
        assert blocks(index) == set(own_hashes(TOKENS))

    def test_engines_with_different_hash_seeds_agree(self) -> None:
        one, other = new_index(), new_index()
        feed(one, stored([1, 2, 3], TOKENS))
        feed(other, stored([b"\xaa" * 32, b"\xbb" * 32], TOKENS[:8]))
        feed(other, stored([b"\xcc" * 32], TOKENS[8:], parent=b"\xbb" * 32))
        assert one.snapshot().blocks == other.snapshot().blocks

    def test_an_adapter_makes_other_blocks_of_the_same_tokens(self) -> None:
        index = new_index()
        feed(index, stored([1, 2], TOKENS[:8], lora_name="poet"))
        assert blocks(index) == set(own_hashes(TOKENS[:8], "poet"))
        assert blocks(index).isdisjoint(own_hashes(TOKENS[:8]))


class TestLeftOut:
    """A block whose name cannot be known is not a hit."""

    def test_unknown_parent(self) -> None:
        index = new_index()
        feed(index, stored([2, 3], TOKENS[:8], parent=1))
        assert blocks(index) == set()
        assert index.ignored == {"unknown_parent": 1, "left_out_parent": 1}

    def test_children_of_what_was_left_out(self) -> None:
        index = new_index()
        feed(index, stored([2], TOKENS[:4], parent=1), stored([3], TOKENS[4:8], parent=2))
        assert blocks(index) == set()
        assert index.ignored == {"unknown_parent": 1, "left_out_parent": 1}

    def test_another_block_size(self) -> None:
        index = new_index()
        feed(index, BlockStored(block_hashes=[1], token_ids=TOKENS[:8], block_size=8))
        assert index.ignored == {"block_size": 1}

    def test_images_or_a_salt_in_the_key_and_all_that_follows(self) -> None:
        index = new_index()
        event = BlockStored(
            block_hashes=[1, 2, 3], token_ids=TOKENS, block_size=BLOCK, extra_keys=[None, ["image"], None]
        )
        feed(index, event)
        assert blocks(index) == {own_hashes(TOKENS)[0]}
        assert index.ignored == {"extra_keys": 1, "left_out_parent": 1}

    @pytest.mark.parametrize("keys", [["poet"], [7]])
    def test_the_adapter_alone_is_no_extra_key(self, keys: list[str | int]) -> None:
        index = new_index()
        feed(
            index,
            BlockStored(
                block_hashes=[1],
                token_ids=TOKENS[:4],
                block_size=BLOCK,
                lora_id=7,
                lora_name="poet",
                extra_keys=[keys],
            ),
        )
        assert blocks(index) == set(own_hashes(TOKENS[:4], "poet"))

    @pytest.mark.parametrize(
        "keys",
        [
            pytest.param([["poet", "poet"]], id="a salt that is the adapter's name too"),
            pytest.param([["poet", ["image-hash", 3]]], id="an image"),
            pytest.param([["poet", b"digest"]], id="prompt embeddings"),
            pytest.param([["sonneteer"]], id="another adapter"),
            pytest.param([], id="keys that do not match the blocks"),
        ],
    )
    def test_anything_beside_the_adapter_is(self, keys: list[list[object]]) -> None:
        index = new_index()
        event = BlockStored(
            block_hashes=[1], token_ids=TOKENS[:4], block_size=BLOCK, lora_name="poet", extra_keys=keys
        )
        feed(index, event)
        assert blocks(index) == set()
        assert index.ignored == {"extra_keys": 1}

    def test_blocks_whose_tokens_do_not_match_their_number(self) -> None:
        # A group that skips blocks still sends the tokens of the whole range: which are whose is not said.
        index = new_index()
        feed(index, BlockStored(block_hashes=[2], token_ids=TOKENS, block_size=BLOCK))
        assert blocks(index) == set()
        assert index.ignored == {"no_tokens": 1}

    def test_a_left_out_block_gets_its_name_once_its_parent_is_known(self) -> None:
        index = new_index()
        feed(index, stored([2], TOKENS[4:8], parent=1))
        feed(index, stored([1, 2], TOKENS[:8]))
        assert blocks(index) == set(own_hashes(TOKENS[:8]))
        feed(index, BlockRemoved(block_hashes=[2]))
        assert blocks(index) == set(own_hashes(TOKENS[:8])), "both copies of block 2 count"
        feed(index, BlockRemoved(block_hashes=[2]))
        assert blocks(index) == set(own_hashes(TOKENS[:4]))


class TestLifetime:
    def test_each_copy_is_removed_by_its_own_event(self) -> None:
        # A prompt found whole has its last block computed again, into a second copy.
        index = new_index()
        feed(index, stored([1, 2], TOKENS[:8]), stored([2], TOKENS[4:8], parent=1))
        feed(index, BlockRemoved(block_hashes=[2]))
        assert blocks(index) == set(own_hashes(TOKENS[:8]))
        feed(index, BlockRemoved(block_hashes=[2]))
        assert blocks(index) == set(own_hashes(TOKENS[:4]))

    def test_a_reused_prefix_announced_again_is_no_second_copy(self) -> None:
        # vLLM's `kv_cache_report_mode: full`: same event, but only one removal follows.
        index = new_index()
        feed(index, stored([1, 2, 3], TOKENS), *[stored([1, 2], TOKENS[:8])] * 3)
        feed(index, BlockRemoved(block_hashes=[3, 2, 1]))
        assert blocks(index) == set()

    def test_no_medium_means_gpu(self) -> None:
        index = new_index()
        feed(index, stored([1], TOKENS[:4], medium=None), BlockRemoved(block_hashes=[1], medium="GPU"))
        assert blocks(index) == set()

    def test_a_cleared_rank_leaves_the_other_rank_alone(self) -> None:
        index = new_index()
        feed(index, stored([1, 2], TOKENS[:8]), rank=0)
        feed(index, stored([1], TOKENS[:4]), rank=1)
        feed(index, AllBlocksCleared(), rank=0)
        assert blocks(index) == set(own_hashes(TOKENS[:4]))
        feed(index, AllBlocksCleared(), rank=1)
        assert blocks(index) == set()

    def test_removing_what_is_not_there_changes_nothing(self) -> None:
        index = new_index()
        feed(index, stored([1], TOKENS[:4]), BlockRemoved(block_hashes=[5, 1], medium="CPU"))
        assert blocks(index) == set(own_hashes(TOKENS[:4]))


class TestDeltas:
    def test_only_net_changes_are_given_out(self) -> None:
        index = new_index()
        feed(index, stored([1, 2], TOKENS[:8]), BlockRemoved(block_hashes=[2]))
        (delta,) = index.deltas()
        assert split(delta.stored) == own_hashes(TOKENS[:4])
        assert delta.removed == b""
        assert index.deltas() == []

    def test_a_removed_block_stored_again_is_no_change(self) -> None:
        index = new_index()
        feed(index, stored([1], TOKENS[:4]))
        index.deltas()
        feed(index, BlockRemoved(block_hashes=[1]), stored([7], TOKENS[:4]))
        assert index.deltas() == []

    def test_a_heartbeat_takes_a_sequence_number(self) -> None:
        index = new_index()
        (delta,) = index.deltas(heartbeat=True)
        assert (delta.sequence, delta.stored, delta.removed, delta.cleared) == (1, b"", b"", False)
        assert index.snapshot().sequence == 1

    def test_many_blocks_are_given_out_in_pieces(self) -> None:
        count = 2 * MAX_DELTA_BLOCKS + 1
        index, reader = new_index(), Reader()
        feed(index, stored(range(1, count + 1), range(count * BLOCK)))
        deltas = index.deltas()
        assert [len(delta.stored) // HASH_BYTES for delta in deltas] == [MAX_DELTA_BLOCKS] * 2 + [1]
        for delta in deltas:
            reader.apply(delta)
        assert reader.blocks == blocks(index)

    def test_another_engine_process_begins_empty_at_sequence_one(self) -> None:
        index = new_index()
        feed(index, stored([1], TOKENS[:4]))
        index.deltas()
        index.restart(generation=2)
        assert index.snapshot().blocks == b""
        feed(index, stored([1], TOKENS[:4]))
        (delta,) = index.deltas()
        assert (delta.generation, delta.sequence, delta.cleared) == (2, 1, False)


CHAINS = [[seed * 1000 + at for at in range(3 * BLOCK)] for seed in range(3)]
# Engine hashes 10*chain + block; the last chain begins with the first one's first block.
CHAINS[2][:BLOCK] = CHAINS[0][:BLOCK]


@st.composite
def an_event(draw: st.DrawFn) -> Event:
    chain = draw(st.integers(0, 2))
    first = draw(st.integers(0, 2))
    last = draw(st.integers(first, 2))
    hashes = [10 * chain + at for at in range(first, last + 1)]
    medium = draw(st.sampled_from(["GPU", "CPU"]))
    kind = draw(st.sampled_from(["stored", "stored", "removed", "removed", "cleared"]))
    if kind == "stored":
        parent = 10 * chain + first - 1 if first else None
        return stored(hashes, CHAINS[chain][first * BLOCK : (last + 1) * BLOCK], parent, medium)
    if kind == "removed":
        return BlockRemoved(block_hashes=list(hashes), medium=medium)
    return AllBlocksCleared()


steps = st.lists(
    st.one_of(
        st.tuples(an_event(), st.integers(0, 1)),
        st.sampled_from(["deltas", "forget", "lost", "whole"]),
    ),
    max_size=40,
)


@given(steps)
def test_whatever_happens_the_deltas_add_up_to_the_snapshot(
    actions: list[tuple[Event, int] | str],
) -> None:
    index, reader = new_index(), Reader()
    for action in actions:
        if action == "forget":
            index.forget(0)
        elif action == "lost":
            index.lost(0)
        elif action == "whole":
            index.whole(0)
        elif isinstance(action, tuple):
            feed(index, action[0], rank=action[1])
        else:
            for delta in index.deltas():
                reader.apply(delta)
    for delta in index.deltas():
        reader.apply(delta)
    snapshot = index.snapshot()
    assert reader.blocks == set(split(snapshot.blocks))
    assert reader.offloaded == set(split(snapshot.offloaded))
    assert reader.complete == snapshot.complete
    assert reader.sequence == snapshot.sequence


@given(steps)
def test_only_blocks_of_real_prompts_are_ever_held(actions: list[tuple[Event, int] | str]) -> None:
    possible = {own for chain in CHAINS for own in own_hashes(chain)}
    index = new_index()
    for action in actions:
        if isinstance(action, tuple):
            feed(index, action[0], rank=action[1])
        assert blocks(index) | set(split(index.snapshot().offloaded)) <= possible


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_order_of_two_prompts_does_not_matter(order: list[int]) -> None:
    index = new_index()
    for chain in order:
        feed(index, stored([10 * chain, 10 * chain + 1, 10 * chain + 2], CHAINS[chain]))
    assert blocks(index) == {own for chain in CHAINS[:2] for own in own_hashes(chain)}
