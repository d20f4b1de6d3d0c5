"""Block hashes: the identity of a prefix."""

from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.blocks import HASH_BYTES, BlockHasher, id_tokens, pack, text_tokens, unpack

HASHER = BlockHasher(b"secret")
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=200)


@given(IDS, IDS, IDS)
def test_prompts_share_exactly_the_hashes_of_their_common_full_blocks(
    head: list[int], a: list[int], b: list[int]
):
    first, second = id_tokens(head + a), id_tokens(head + b)
    one, two = unpack(HASHER.chain(first, 16)), unpack(HASHER.chain(second, 16))
    common = 0
    for x, y in zip((head + a), (head + b), strict=False):
        if x != y:
            break
        common += 1
    shared = sum(1 for x, y in zip(one, two, strict=False) if x == y)
    assert shared == min(common // 16, len(one), len(two))


@given(IDS)
def test_only_full_blocks_are_hashed(ids: list[int]):
    assert len(HASHER.chain(id_tokens(ids), 16)) == len(ids) // 16 * HASH_BYTES


def test_another_secret_or_adapter_gives_other_hashes():
    tokens = text_tokens("x" * 256)
    plain = HASHER.chain(tokens, 16)
    assert plain != BlockHasher(b"other").chain(tokens, 16)
    assert plain != HASHER.chain(tokens, 16, adapter="lora-1")


@given(st.text(max_size=300))
def test_four_bytes_of_text_are_one_token(text: str):
    assert len(text_tokens(text)) == -(-len(text.encode()) // 4)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_packing_is_reversible(hashes: list[int]):
    assert unpack(pack(hashes)) == hashes
