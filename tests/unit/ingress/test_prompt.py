"""Equal prompts give equal blocks, and nothing but lengths and keyed hashes leaves."""

import json
from typing import Any

import pytest

from ingress.prompt import MAX_BLOCKS, account, count_and_hash
from ingress.validation import ApiRequest, Operation, parse
from tokenfleet.blocks import HASH_BYTES, BlockHasher

HASHER = BlockHasher(b"secret")


def request(operation: Operation, **fields: Any) -> ApiRequest:
    return parse(operation, json.dumps({"model": "m", **fields}).encode())


def test_a_text_counts_one_token_for_four_bytes_and_hashes_its_full_blocks() -> None:
    counted = count_and_hash(request("text_completion", prompt="x" * 130), HASHER, 16)
    assert counted.input_tokens == 33
    assert len(counted.blocks) == 2 * HASH_BYTES


def test_token_ids_count_as_they_are() -> None:
    counted = count_and_hash(request("text_completion", prompt=[7] * 40), HASHER, 16)
    assert counted.input_tokens == 40
    assert len(counted.blocks) == 2 * HASH_BYTES


@pytest.mark.parametrize("prompt", [["x" * 80, "y" * 80], [[1] * 20, [2] * 20]])
def test_several_prompts_are_counted_together(prompt: list[Any]) -> None:
    assert count_and_hash(request("text_completion", prompt=prompt), HASHER, 16).input_tokens == 40


def test_a_later_turn_of_a_chat_begins_with_the_blocks_of_the_earlier_one() -> None:
    first = [{"role": "system", "content": "s" * 200}, {"role": "user", "content": "u" * 200}]
    answer = [{"role": "assistant", "content": "a" * 200}, {"role": "user", "content": "more"}]
    early = count_and_hash(request("chat", messages=first), HASHER, 16).blocks
    late = count_and_hash(request("chat", messages=first + answer), HASHER, 16).blocks
    assert len(early) > 0
    assert late.startswith(early)


def test_content_parts_count_like_the_text_they_hold() -> None:
    whole = request("chat", messages=[{"role": "user", "content": "hello there"}])
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
    split = request("chat", messages=[{"role": "user", "content": parts}])
    assert count_and_hash(whole, HASHER, 2) == count_and_hash(split, HASHER, 2)


def test_another_secret_gives_other_hashes() -> None:
    body = request("text_completion", prompt="x" * 64)
    assert count_and_hash(body, HASHER, 16).blocks != count_and_hash(body, BlockHasher(b"other"), 16).blocks


def test_an_empty_prompt_still_counts_one_token() -> None:
    assert count_and_hash(request("text_completion", prompt=""), HASHER, 16).input_tokens == 1


async def test_a_very_long_prompt_is_counted_in_full_but_hashed_to_a_limit() -> None:
    counted = await account(request("text_completion", prompt="x" * (4 * (MAX_BLOCKS + 10))), HASHER, 1)
    assert counted.input_tokens == MAX_BLOCKS + 10
    assert len(counted.blocks) == MAX_BLOCKS * HASH_BYTES
