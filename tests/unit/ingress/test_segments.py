"""What a text is cut into and what is remembered of it never changes its token ids."""

import pytest
import tiny_tokenizers as tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ingress.tokenization import segments
from ingress.tokenization.segments import ENTRY_TOKENS, MIN_SEGMENT_CHARS, Segmenter, TokenCache

KINDS = {
    "byte level": tiny.byte_level,
    "byte level with a leading space": lambda: tiny.byte_level(prefix_space=True),
    "own pattern and beginning": tiny.with_bos,
    "prepending normalizer": tiny.prepending,
    "metaspace, first": lambda: tiny.metaspace("first"),
    "metaspace, always": lambda: tiny.metaspace("always"),
    "normalizing": tiny.normalizing,
    "tokens that take spaces": tiny.greedy_tokens,
    "whole words": tiny.whole_words,
}
PIECES = [*tiny.TOKENS, *tiny.SENTENCES, "<mask>", "<sep>", "fox", "foxes", "lazy", "LAZY", " ", "\n", "<|", "|>", "é", "e\u0301", "▁"]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=14).map("".join)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(text=TEXTS, more=TEXTS)
def test_a_text_and_its_continuation_have_the_ids_of_the_whole_texts(kind: str, text: str, more: str) -> None:
    tokenizer = KINDS[kind]()
    with pytest.MonkeyPatch.context() as patch:
        # Cut wherever it is safe, so that many short texts are as good a test as long ones.
        patch.setattr(segments, "MIN_SEGMENT_CHARS", 1)
        segmenter = Segmenter(tokenizer, TokenCache(10_000))
        for grown in (text, text + more, text):
            assert segmenter.ids(grown).tolist() == whole(tokenizer, grown)


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=8), capacity=st.integers(1, 600))
def test_a_small_cache_forgets_but_never_errs_and_keeps_its_bound(texts: list[str], capacity: int) -> None:
    tokenizer, cache = tiny.byte_level(), TokenCache(capacity)
    segmenter = Segmenter(tokenizer, cache)
    for text in texts:
        assert segmenter.ids(text).tolist() == whole(tokenizer, text)
        assert cache.held_tokens <= capacity


def turns(count: int) -> list[str]:
    return [f"<|im_start|>user\n{tiny.SENTENCES[1] * 3} ({number})<|im_end|>\n" for number in range(count)]


def test_a_conversation_that_grows_is_tokenized_only_where_it_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized: list[str] = []

    class Counting:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self._tokenizer = tokenizer

        def __getattr__(self, name: str) -> object:
            return getattr(self._tokenizer, name)

        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> object:
            tokenized.extend(texts)
            return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    segmenter = Segmenter(Counting(tiny.byte_level()), TokenCache(1 << 20))  # type: ignore[arg-type]
    conversation = "".join(turns(20))
    segmenter.ids(conversation)
    tokenized.clear()
    segmenter.ids(conversation + turns(21)[-1])
    assert 0 < sum(map(len, tokenized)) <= len(turns(21)[-1]) + 2 * MIN_SEGMENT_CHARS


def test_a_text_without_special_tokens_stays_whole() -> None:
    segmenter = Segmenter(tiny.byte_level(), TokenCache(1 << 20))
    text = " ".join(tiny.SENTENCES[:3]) * 10
    assert segmenter.cut(text) == [text]


def test_a_tokenizer_with_whole_word_tokens_is_never_cut() -> None:
    segmenter = Segmenter(tiny.whole_words(), TokenCache(1 << 20))
    assert len(segmenter.cut("".join(turns(5)))) == 1


def test_two_tokenizers_share_a_cache_without_mixing_their_ids() -> None:
    cache = TokenCache(1 << 20)
    text = "".join(turns(3))
    for tokenizer in (tiny.byte_level(), tiny.metaspace("first")):
        assert Segmenter(tokenizer, cache).ids(text).tolist() == whole(tokenizer, text)


def test_what_was_used_last_is_kept() -> None:
    cache = TokenCache(3 * ENTRY_TOKENS)
    one = Segmenter(tiny.byte_level(), cache)
    first, second, third = (whole_text + "<|im_end|>" for whole_text in ("a", "b", "c"))
    for text in (first, second, first, third):
        one.ids(text)
    assert len(cache) == 2
    held = cache.held_tokens
    one.ids(first)
    assert cache.held_tokens == held, "it was still there"
