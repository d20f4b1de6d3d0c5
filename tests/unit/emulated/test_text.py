"""The emulated model's answers."""

from statistics import median

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from node_agent.emulated.text import Answer, answer_to
from tokenfleet.blocks import text_tokens


def test_the_same_prompt_gets_the_same_answer_and_another_prompt_another():
    assert answer_to(text_tokens("Why?")) == answer_to(text_tokens("Why?"))
    assert answer_to(text_tokens("Why?")) != answer_to(text_tokens("How?"))


@given(seed=st.integers(0, 2**64 - 1), cuts=st.lists(st.integers(0, 300), min_size=1))
def test_every_token_is_four_characters_and_chunks_join_to_the_whole(seed: int, cuts: list[int]):
    answer = Answer(300, seed)
    ends = sorted(cuts)
    chunks = [answer.text(start, end) for start, end in zip([0, *ends], [*ends, 300], strict=True)]
    assert "".join(chunks) == answer.text(0, 300)
    assert len(answer.text(0, 300)) == 1_200
    assert len(text_tokens(answer.text(0, 300))) == 300


def test_lengths_are_those_of_chat_traffic():
    lengths = sorted(answer_to(np.array([prompt], dtype=np.uint32)).output_tokens for prompt in range(2_000))
    assert 330 < median(lengths) < 370
    assert 550 < lengths[1_800] < 650
    assert lengths[0] >= 1
    assert lengths[-1] <= 2_000
