"""Equal prompts give equal blocks, the best method at hand is used, and nothing but lengths and keyed hashes leaves."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_tokenizers as tiny
from fleets import record

from ingress.engine_connection import Timeouts
from ingress.prompt import MAX_BLOCKS, TOKENIZE_IN_THREAD_ABOVE_BYTES, Prompts, count_characters
from ingress.tokenization.engine import EngineTokenizers
from ingress.tokenization.local import LocalTokenizer
from ingress.tokenization.segments import TokenCache
from ingress.upstream import EngineClient
from ingress.validation import ApiRequest, Operation, parse
from tokenfleet.blocks import HASH_BYTES, BlockHasher
from tokenfleet.contracts.fleet import InstanceRecord

HASHER = BlockHasher(b"secret")
BLOCK = 16
RECORDS = [record("a", block_size_tokens=BLOCK)]
HI = [{"role": "user", "content": "hi, what is the weather like? " * 6}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]


def request(operation: Operation, **fields: Any) -> ApiRequest:
    return parse(operation, json.dumps({"model": "m", **fields}).encode())


def prompts_by(tokenizers: dict[str, LocalTokenizer]) -> Prompts:
    nobody = EngineTokenizers(
        EngineClient(Timeouts(1, 1, 1)), lambda coroutine: coroutine.close(), timeout_s=1, concurrency=1
    )
    return Prompts(HASHER, tokenizers, nobody)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LocalTokenizer:
    return LocalTokenizer.load(
        tiny.folder(tmp_path_factory.mktemp("model"), tiny.with_bos()), TokenCache(1 << 20)
    )


@pytest.fixture
def prompts(tokenizer: LocalTokenizer) -> Prompts:
    return prompts_by({RECORDS[0].model: tokenizer})


class TestCharacters:
    def test_a_text_counts_one_token_for_four_bytes_and_hashes_its_full_blocks(self) -> None:
        counted = count_characters(request("text_completion", prompt="x" * 130), HASHER, 16)
        assert counted.input_tokens == 33
        assert len(counted.blocks) == 2 * HASH_BYTES
        assert not counted.exact

    def test_token_ids_count_as_they_are(self) -> None:
        counted = count_characters(request("text_completion", prompt=[7] * 40), HASHER, 16)
        assert counted.input_tokens == 40
        assert len(counted.blocks) == 2 * HASH_BYTES

    @pytest.mark.parametrize("prompt", [["x" * 80, "y" * 80], [[1] * 20, [2] * 20]])
    def test_several_prompts_are_counted_together(self, prompt: list[Any]) -> None:
        assert count_characters(request("text_completion", prompt=prompt), HASHER, 16).input_tokens == 40

    def test_a_later_turn_of_a_chat_begins_with_the_blocks_of_the_earlier_one(self) -> None:
        first = [{"role": "system", "content": "s" * 200}, {"role": "user", "content": "u" * 200}]
        answer = [{"role": "assistant", "content": "a" * 200}, {"role": "user", "content": "more"}]
        early = count_characters(request("chat", messages=first), HASHER, 16).blocks
        late = count_characters(request("chat", messages=first + answer), HASHER, 16).blocks
        assert len(early) > 0
        assert late.startswith(early)

    def test_content_parts_count_like_the_text_they_hold(self) -> None:
        whole = request("chat", messages=[{"role": "user", "content": "hello there"}])
        parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
        split = request("chat", messages=[{"role": "user", "content": parts}])
        assert count_characters(whole, HASHER, 2) == count_characters(split, HASHER, 2)

    def test_another_secret_gives_other_hashes(self) -> None:
        body = request("text_completion", prompt="x" * 64)
        other = count_characters(body, BlockHasher(b"other"), 16)
        assert count_characters(body, HASHER, 16).blocks != other.blocks

    def test_an_empty_prompt_still_counts_one_token(self) -> None:
        assert count_characters(request("text_completion", prompt=""), HASHER, 16).input_tokens == 1

    async def test_a_very_long_prompt_is_counted_in_full_but_hashed_to_a_limit(self) -> None:
        body = request("text_completion", prompt="x" * (4 * (MAX_BLOCKS + 10)))
        counted = await prompts_by({}).account(body, [record("a", block_size_tokens=1)])
        assert counted.input_tokens == MAX_BLOCKS + 10
        assert len(counted.blocks) == MAX_BLOCKS * HASH_BYTES

    async def test_a_model_without_a_tokenizer_keeps_them(self) -> None:
        body = request("chat", messages=HI)
        assert await prompts_by({}).account(body, RECORDS) == count_characters(body, HASHER, BLOCK)


class TestTokenizer:
    async def test_a_chat_has_the_blocks_of_the_ids_that_the_engine_computes(self, prompts: Prompts) -> None:
        counted = await prompts.account(request("chat", messages=HI), RECORDS)
        text = f"<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n{HI[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        ids = tiny.with_bos().encode(text, add_special_tokens=False).ids
        assert counted.input_tokens == len(ids)
        assert counted.blocks == HASHER.chain(np.array(ids, dtype=np.uint32), BLOCK)
        assert counted.blocks
        assert (counted.method, counted.exact) == ("tokenizer", True)

    @pytest.mark.parametrize("wanted", [None, True, False])
    async def test_a_completion_begins_as_a_sequence_unless_told_otherwise(
        self, prompts: Prompts, wanted: bool | None
    ) -> None:
        text = tiny.SENTENCES[0]
        fields = {} if wanted is None else {"add_special_tokens": wanted}
        counted = await prompts.account(request("text_completion", prompt=text, **fields), RECORDS)
        ids = tiny.with_bos().encode(text, add_special_tokens=wanted is not False).ids
        assert counted.input_tokens == len(ids)
        assert counted.blocks == HASHER.chain(np.array(ids, dtype=np.uint32), BLOCK)

    async def test_token_ids_need_no_tokenizer_and_are_exact(self, prompts: Prompts) -> None:
        counted = await prompts.account(request("text_completion", prompt=[7] * 40), RECORDS)
        assert (counted.input_tokens, counted.method, counted.exact) == (40, None, True)

    async def test_a_long_prompt_leaves_the_event_loop_free(self, prompts: Prompts) -> None:
        body = request("chat", messages=[{"role": "user", "content": " ".join(tiny.SENTENCES[:3]) * 3_000}])
        assert len(body.body) > TOKENIZE_IN_THREAD_ABOVE_BYTES
        loop = asyncio.get_running_loop()
        counting = asyncio.ensure_future(prompts.account(body, RECORDS))
        longest_s, before_s = 0.0, (begun_s := loop.time())
        while not counting.done():
            await asyncio.sleep(0.001)
            longest_s, before_s = max(longest_s, loop.time() - before_s), loop.time()
        assert (await counting).input_tokens > 100_000
        whole_s = loop.time() - begun_s
        assert longest_s < whole_s / 2, (
            "an `encode` that kept the interpreter's lock would take nearly all of it"
        )

    async def test_a_version_of_its_own_may_have_a_tokenizer_of_its_own(
        self, tokenizer: LocalTokenizer
    ) -> None:
        mine, other = record("a", version="v1"), record("b", version="v2")
        prompts = prompts_by({mine.pool: tokenizer})
        assert prompts.method([mine], chat=True) == "tokenizer"
        assert prompts.method([other], chat=True) == "characters"

    async def test_without_a_chat_template_only_completions_are_tokenized(self, tmp_path: Path) -> None:
        bare = LocalTokenizer.load(tiny.folder(tmp_path, tiny.with_bos(), template=None), TokenCache(1_000))
        prompts = prompts_by({RECORDS[0].model: bare})
        chat = await prompts.account(request("chat", messages=HI), RECORDS)
        text = await prompts.account(request("text_completion", prompt="hi"), RECORDS)
        assert (chat.method, text.method) == ("characters", "tokenizer")


UNKNOWN: dict[str, dict[str, Any]] = {
    "images": {"messages": IMAGE},
    "audio": {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
    "a part of no kind": {"messages": [{"role": "user", "content": [{"type": [], "text": "a"}]}]},
    "a part that is none": {"messages": [{"role": "user", "content": [7]}]},
    "its own template": {"messages": HI, "chat_template": "{{ messages }}"},
    "its own template, hidden": {"messages": HI, "chat_template_kwargs": {"chat_template": "x"}},
    "truncation": {"messages": HI, "truncate_prompt_tokens": 5},
    "ids from elsewhere": {"messages": HI, "kv_transfer_params": {"prompt_token_ids": [1, 2]}},
    "a contradiction": {"messages": HI, "continue_final_message": True},
    "a template's refusal": {"messages": HI, "tools": [{"type": "function", "function": 1}]},
}


class TestNoBlocks:
    """Rather no known prefix than a wrong one."""

    @pytest.mark.parametrize("with_tokenizer", [True, False])
    @pytest.mark.parametrize("why", UNKNOWN)
    async def test_when_the_ids_cannot_be_told(
        self, prompts: Prompts, why: str, with_tokenizer: bool
    ) -> None:
        by = prompts if with_tokenizer else prompts_by({})
        counted = await by.account(request("chat", **UNKNOWN[why]), RECORDS)
        assert counted.blocks == b""
        assert counted.input_tokens > 0
        assert not counted.exact

    @pytest.mark.parametrize("salt", ["cache_salt", "extra_key"])
    async def test_when_the_engine_keeps_the_blocks_apart_but_they_are_counted(
        self, prompts: Prompts, salt: str
    ) -> None:
        plain = await prompts.account(request("chat", messages=HI), RECORDS)
        salted = await prompts.account(request("chat", messages=HI, **{salt: "mine"}), RECORDS)
        assert salted.blocks == b""
        assert (salted.input_tokens, salted.exact) == (plain.input_tokens, True)


@pytest.mark.parametrize("records", [RECORDS, [record("b", block_size_tokens=32)]])
async def test_blocks_are_as_long_as_the_engines(prompts: Prompts, records: list[InstanceRecord]) -> None:
    counted = await prompts.account(request("chat", messages=HI), records)
    assert len(counted.blocks) == counted.input_tokens // records[0].block_size_tokens * HASH_BYTES
