"""What a prompt of 10,000 tokens costs an ingress, by how its token ids are told: new, grown by a turn, or characters."""

import functools
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ingress.prompt import count, count_characters
from ingress.tokenization.chat import chat_of
from ingress.tokenization.local import LocalTokenizer
from ingress.tokenization.segments import TokenCache
from ingress.validation import ApiRequest, ChatBody, parse
from tokenfleet.blocks import BlockHasher

TOKENS = 10_000
TURNS = 20
BLOCK = 16
HASHER = BlockHasher(b"benchmark")
COST = {"timer": time.process_time, "min_time": 0.01, "max_time": 1.0}


@functools.cache
def words() -> list[str]:
    draw = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgk"
    return ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(4_000)]


def trained() -> Tokenizer:
    """Like Llama 3's in its form, with a vocabulary of 8,000 tokens for these words: about four characters a token."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = tiny.with_bos().pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=8_000,
        special_tokens=[*map(tiny.special, tiny.TOKENS)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    draw, vocabulary = random.Random(1), words()
    tokenizer.train_from_iterator([" ".join(draw.choices(vocabulary, k=500)) for _ in range(200)], trainer)
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("model"), trained())


def conversation(seed: int, turns: int) -> list[dict[str, str]]:
    draw, vocabulary = random.Random(seed), words()
    per_turn = TOKENS * 3 // (TURNS * 5)
    return [
        {
            "role": ("user", "assistant")[turn % 2],
            "content": " ".join(draw.choices(vocabulary, k=per_turn)),
        }
        for turn in range(turns)
    ]


def request(messages: list[dict[str, str]]) -> ApiRequest:
    return parse("chat", json.dumps({"model": "m", "messages": messages}).encode())


def account(tokenizer: LocalTokenizer, api: ApiRequest) -> int:
    """All that ingress does for a chat once its body is decoded."""
    assert isinstance(api.fields, ChatBody)
    return count([tokenizer.chat(chat_of(api.fields))], HASHER, BLOCK, "tokenizer").input_tokens


@pytest.mark.benchmark(group="tokenization: 10,000 tokens", **COST)
def test_a_new_prompt(benchmark: Any, folder: Path) -> None:
    tokenizer = LocalTokenizer.load(folder, TokenCache(1))
    api = request(conversation(1, TURNS))
    assert 0.8 * TOKENS < benchmark(lambda: account(tokenizer, api)) < 1.25 * TOKENS


@pytest.mark.benchmark(group="tokenization: 10,000 tokens", **COST)
def test_a_prompt_grown_by_one_turn(benchmark: Any, folder: Path) -> None:
    tokenizer = LocalTokenizer.load(folder, TokenCache(64 << 20))
    start = conversation(1, TURNS - 1)
    account(tokenizer, request(start))
    latest = itertools.count(2)

    def next_turn() -> tuple[tuple[LocalTokenizer, ApiRequest], dict[str, Any]]:
        return (tokenizer, request([*start, *conversation(next(latest), 1)])), {}

    counted = benchmark.pedantic(account, setup=next_turn, rounds=100)
    assert 0.8 * TOKENS < counted < 1.25 * TOKENS


@pytest.mark.benchmark(group="tokenization: 10,000 tokens", **COST)
def test_the_same_prompt_again(benchmark: Any, folder: Path) -> None:
    tokenizer = LocalTokenizer.load(folder, TokenCache(64 << 20))
    api = request(conversation(1, TURNS))
    account(tokenizer, api)
    benchmark(lambda: account(tokenizer, api))


@pytest.mark.benchmark(group="tokenization: 10,000 tokens", **COST)
def test_characters(benchmark: Any) -> None:
    api = request(conversation(1, TURNS))
    counted = benchmark(lambda: count_characters(api, HASHER, BLOCK))
    assert 0.8 * TOKENS < counted.input_tokens < 1.5 * TOKENS
