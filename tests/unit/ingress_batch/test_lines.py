"""Which lines a batch may have, and how their results read."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.policy.batch import lines
from ingress.policy.batch.lines import CANCELLED, EXPIRED, MAX_ERRORS, LineChecker, LineError, Response

CHAT = "/v1/chat/completions"
MODELS = {"llama-70b", "llama-70b@1"}


def request(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"model": "llama-70b", "messages": [{"role": "user", "content": "hello"}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes


def line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def check(*data: bytes, max_lines: int = 50_000) -> LineChecker:
    checker = LineChecker(CHAT, MODELS.__contains__, max_lines)
    for number, text in enumerate(data, start=1):
        checker.check(number, text)
    checker.finish()
    return checker


def error_of(*data: bytes, max_lines: int = 50_000) -> LineError:
    (error,) = check(*data, max_lines=max_lines).errors
    return error


# -- what is wrong with a file


def test_requests_with_ids_of_their_own_are_fine_and_blank_lines_do_not_count():
    checker = check(line(request("a")), b"\n", line(request("b")), b"  \r\n")
    assert checker.errors == []
    assert checker.lines == 2


def test_a_custom_id_used_twice_names_both_lines():
    error = error_of(line(request("a")), line(request("b")), line(request("a")))
    assert (error.code, error.line, error.param) == ("duplicate_custom_id", 3, "custom_id")
    assert "line 1" in error.message


@pytest.mark.parametrize(
    "broken", [b"{\n", b"not json\n", b'{"custom_id": "a"\n', b'{"custom_id": "\xff"}\n']
)
def test_json_that_is_broken_is_named_by_its_line(broken: bytes):
    error = error_of(line(request("a")), broken)
    assert (error.code, error.line) == ("invalid_json_line", 2)


@pytest.mark.parametrize("missing", ["custom_id", "method", "url", "body"])
def test_a_field_that_is_missing_is_named(missing: str):
    whole = request()
    del whole[missing]
    error = error_of(line(whole))
    assert error.code == "invalid_request"
    assert missing in error.message


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "x" * 257}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "a\u0000b"}, "invalid_custom_id", "custom_id"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"url": "/v1/completions"}, "invalid_url", "url"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"body": {"model": "llama-70b"}}, "invalid_value", "body.messages"),
        ({"body": 3}, "invalid_value", "body"),
    ],
)
def test_a_field_that_is_wrong_is_named(changes: dict[str, Any], code: str, param: str):
    error = error_of(line(request(**changes)))
    assert (error.code, error.param, error.line) == (code, param, 1)


def test_there_is_nobody_to_stream_to():
    body = request()["body"] | {"stream": True}
    assert error_of(line(request(body=body))).code == "stream_not_supported"


def test_a_model_that_is_unknown_or_not_the_tenants_is_named():
    error = error_of(line(request(body=request()["body"] | {"model": "gpt-9"})))
    assert (error.code, error.param) == ("model_not_found", "body.model")
    assert "gpt-9" in error.message


def test_a_file_without_requests_is_not_a_batch():
    assert error_of().code == "empty_file"
    assert error_of(b"\n", b"\n").code == "empty_file"


def test_one_request_more_than_allowed_is_too_many():
    assert check(*(line(request(str(n))) for n in range(3)), max_lines=3).errors == []
    error = error_of(*(line(request(str(n))) for n in range(4)), max_lines=3)
    assert error.code == "too_many_tasks"
    assert "3" in error.message


def test_every_wrong_line_is_listed_up_to_a_bound():
    wrong = line(request(method="GET"))
    assert [error.line for error in check(wrong, line(request()), wrong).errors] == [1, 3]
    checker = check(*[wrong] * (MAX_ERRORS + 5))
    assert len(checker.errors) == MAX_ERRORS
    assert checker.hopeless


@given(st.binary(max_size=200))
def test_no_bytes_break_the_check(data: bytes):
    checker = check(data)
    assert all(error.code for error in checker.errors)


# -- results


def test_an_answer_is_written_as_openai_writes_it():
    response = Response(200, "req-1", lines.one_line(b'{"id": "x",\n "n": 1.50}'))
    written = lines.answered("batch_ab", 7, "mine", response)
    assert written.endswith(b"}\n")
    assert written.count(b"\n") == 1
    assert json.loads(written) == {
        "id": "batch_req_ab00000007",
        "custom_id": "mine",
        "response": {"status_code": 200, "request_id": "req-1", "body": {"id": "x", "n": 1.5}},
        "error": None,
    }


@pytest.mark.parametrize(("problem", "code"), [(EXPIRED, "batch_expired"), (CANCELLED, "batch_cancelled")])
def test_a_request_that_was_never_answered_says_why(problem: lines.Problem, code: str):
    written = json.loads(lines.unanswered("batch_ab", 1, "mine", problem))
    assert written["response"] is None
    assert written["error"]["code"] == code
    assert written["error"]["message"]


def test_a_body_in_one_line_is_left_byte_for_byte():
    body = b'{"logprob":-0.10000000000000001,"vendor":1.50}'
    assert bytes(lines.one_line(body)) == body


@given(st.binary(max_size=100) | st.text(max_size=50).map(lambda text: json.dumps(text, indent=1).encode()))
def test_whatever_an_engine_answers_stays_one_line_of_json(body: bytes):
    written = lines.answered("batch_ab", 1, "mine", Response(500, "r", lines.one_line(body)))
    assert written.count(b"\n") == 1
    assert b"\r" not in written
    msgspec.json.decode(written)
