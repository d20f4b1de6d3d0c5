"""What the emulated engine takes as a request and what it refuses."""

import json
from typing import Any

import pytest

from node_agent.emulated.protocol import ApiError, parse
from tokenfleet.blocks import text_tokens


def tokens(*, chat: bool = False, **fields: Any) -> list[int]:
    return parse(json.dumps(fields).encode(), chat=chat)[1].tolist()


def test_a_text_prompt_is_four_bytes_a_token_and_token_ids_are_taken_as_they_are():
    assert tokens(prompt="twelve bytes") == text_tokens("twelve bytes").tolist()
    assert tokens(prompt=[5, 6, 4_000_000_000]) == [5, 6, 4_000_000_000]


def test_a_batch_of_one_prompt_is_that_prompt():
    assert tokens(prompt=["twelve bytes"]) == tokens(prompt="twelve bytes")
    assert tokens(prompt=[[1, 2]]) == [1, 2]


def test_an_empty_prompt_is_still_one_token():
    assert len(tokens(prompt="")) == len(tokens(prompt=[])) == 1


def test_the_next_turn_of_a_chat_begins_with_the_tokens_of_the_turn_before_and_its_answer():
    turn = [{"role": "system", "content": "Be brief!"}, {"role": "user", "content": "Why?"}]
    answered = [*turn, {"role": "assistant", "content": "Because."}]
    further = [*answered, {"role": "user", "content": [{"type": "text", "text": "Really?"}]}]
    first, second = tokens(chat=True, messages=turn), tokens(chat=True, messages=further)
    assert second[: len(first)] == first
    assert second[len(first) : len(first) + 2] == text_tokens("Because.").tolist()


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ({}, None),
    ],
)
def test_a_chats_limit_is_the_newer_field_then_the_older(fields: dict[str, int], limit: int | None):
    body, _ = parse(json.dumps({"messages": [{"role": "user"}], **fields}).encode(), chat=True)
    assert body.limit_tokens == limit


def test_a_completion_without_a_limit_is_sixteen_tokens_as_in_openais_api():
    body, _ = parse(b'{"prompt": "x"}', chat=False)
    assert body.limit_tokens == 16


@pytest.mark.parametrize(
    ("chat", "body", "reason"),
    [
        (False, b'{"prompt": "x"', "truncated"),
        (False, b"\xff", "malformed"),
        (False, b"[" * 100_000, "wrong"),
        (False, b"{}", "missing required field `prompt`"),
        (False, b'{"prompt": 5}', "prompt"),
        (False, b'{"prompt": [1, "a"]}', "token ids"),
        (False, b'{"prompt": [-1]}', "token ids"),
        (False, b'{"prompt": [5000000000]}', "token ids"),
        (False, b'{"prompt": ["a", "b"]}', "one string"),
        (False, b'{"prompt": "x", "max_tokens": 0}', "max_tokens"),
        (False, b'{"prompt": "x", "max_tokens": "9"}', "max_tokens"),
        (False, b'{"prompt": "x", "n": 2}', "one choice"),
        (False, b'{"prompt": "x", "stream_options": {"include_usage": true}}', "stream"),
        (True, b'{"messages": []}', "messages"),
        (True, b'{"messages": [{"role": "user", "content": 1}]}', "content"),
    ],
)
def test_a_wrong_body_is_refused_with_400_and_a_reason(chat: bool, body: bytes, reason: str):
    with pytest.raises(ApiError) as refusal:
        parse(body, chat=chat)
    assert refusal.value.status == 400
    assert reason in json.loads(refusal.value.body())["error"]["message"]
