"""Synthesised prompts are as long as the trace says, and share exactly the blocks it says."""

from hypothesis import given
from hypothesis import strategies as st

from lab.prompts import PromptWriter
from lab.traces.model import TraceRequest, blocks_in
from tokenfleet.blocks import BlockHasher, text_tokens, unpack

BLOCK = 32
HASHER = BlockHasher(b"test")


def request(input_tokens: int, first_id: int = 0, block: int = BLOCK) -> TraceRequest:
    ids = tuple(range(first_id, first_id + blocks_in(input_tokens, block)))
    return TraceRequest(
        arrival_s=0.0, input_tokens=input_tokens, output_tokens=1, block_ids=ids, trace_block_tokens=block
    )


def hashes(text: str) -> list[int]:
    return unpack(HASHER.chain(text_tokens(text), BLOCK))


@given(input_tokens=st.integers(1, 2_000), block=st.sampled_from([16, 32, 512]), salt=st.text(max_size=8))
def test_a_prompt_has_exactly_the_tokens_of_the_trace(input_tokens, block, salt):
    prompt = PromptWriter(salt).prompt(request(input_tokens, block=block))
    assert len(text_tokens(prompt)) == input_tokens
    assert len(prompt.encode()) == 4 * input_tokens


@given(
    left=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    right=st.lists(st.integers(0, 3), min_size=1, max_size=6),
)
def test_prompts_share_hashed_blocks_exactly_as_far_as_their_ids_agree(left, right):
    writer = PromptWriter("salt")
    prompts = [
        writer.prompt(
            TraceRequest(
                arrival_s=0.0,
                input_tokens=BLOCK * len(ids),
                output_tokens=1,
                block_ids=tuple(ids),
                trace_block_tokens=BLOCK,
            )
        )
        for ids in (left, right)
    ]
    agreeing = [a == b for a, b in zip(left, right, strict=False)]
    expected = agreeing.index(False) if False in agreeing else len(agreeing)
    shared = [a == b for a, b in zip(hashes(prompts[0]), hashes(prompts[1]), strict=False)]
    assert shared == [True] * expected + [False] * (len(shared) - expected)


def test_another_salt_shares_nothing():
    first, second = (hashes(PromptWriter(salt).prompt(request(320))) for salt in ("a", "b"))
    assert not set(first) & set(second)


def test_the_longest_prompt_of_the_trace_is_written_whole():
    assert len(text_tokens(PromptWriter("x").prompt(request(126_195, block=512)))) == 126_195
