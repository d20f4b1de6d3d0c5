"""What is wrong with a body is said clearly; what is right reaches the engine as it was sent."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.errors import ApiError
from ingress.validation import Operation, client_request_id, parse

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
TEXT = {"model": "m", "prompt": "hello"}


@pytest.mark.parametrize(
    ("operation", "body", "param"),
    [
        ("chat", CHAT | {"max_tokens": -1}, "max_tokens"),
        ("chat", CHAT | {"max_tokens": 0}, "max_tokens"),
        ("chat", CHAT | {"max_tokens": "many"}, "max_tokens"),
        ("chat", CHAT | {"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ("chat", CHAT | {"n": 0}, "n"),
        ("chat", CHAT | {"stream": "yes"}, "stream"),
        (
            "chat",
            CHAT | {"stream": True, "stream_options": {"include_usage": 3}},
            "stream_options.include_usage",
        ),
        ("chat", CHAT | {"stream_options": {"include_usage": True}}, "stream_options"),
        ("chat", CHAT | {"model": ""}, "model"),
        ("chat", {"messages": CHAT["messages"]}, "model"),
        ("chat", {"model": "m"}, "messages"),
        ("chat", CHAT | {"messages": []}, "messages"),
        ("chat", CHAT | {"messages": "hello"}, "messages"),
        ("chat", CHAT | {"messages": [{"content": "hello"}]}, "messages[0].role"),
        ("chat", CHAT | {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ("text_completion", {"model": "m"}, "prompt"),
        ("text_completion", TEXT | {"prompt": []}, "prompt"),
        ("text_completion", TEXT | {"prompt": [1, "a"]}, "prompt"),
        ("text_completion", TEXT | {"prompt": [-1]}, "prompt"),
        ("text_completion", TEXT | {"prompt": [[1], [2**32]]}, "prompt"),
        ("text_completion", TEXT | {"prompt": {"text": "a"}}, "prompt"),
        ("text_completion", TEXT | {"max_tokens": -5}, "max_tokens"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_the_parameter(operation: Operation, body: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(operation, json.dumps(body).encode())
    error = json.loads(caught.value.body())["error"]
    assert caught.value.status == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        json.dumps(CHAT).encode()[:-5],
        b"not json",
        b"\xff\xfe",
        b'{"model": "\\ud800"}',
        b'{"x": ' + b"[" * 100_000,
    ],
)
def test_a_body_that_is_not_json_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse("chat", body)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"


def test_a_body_goes_to_the_engine_as_it_came() -> None:
    body = b'  {"model":"m",  "prompt": "h\\u00e9", "vendor_field": {"x": [1.50]}}\n'
    assert parse("text_completion", body).engine_body("m") is body


def test_usage_is_asked_for_when_the_client_streams_and_did_not_ask() -> None:
    body = json.dumps(CHAT | {"stream": True, "odd": 1.50}).encode()
    sent = parse("chat", body).engine_body("m")
    assert sent.endswith(body[1:]), "everything the client sent is still there, byte for byte"
    assert json.loads(sent)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False, "other": 1}])
def test_stream_options_of_the_client_are_kept(options: Any) -> None:
    body = json.dumps(CHAT | {"stream": True, "stream_options": options}).encode()
    request = parse("chat", body)
    assert not request.wants_usage
    sent = json.loads(request.engine_body("m"))
    assert sent["stream_options"] == (options or {}) | {"include_usage": True}
    assert sent["messages"] == CHAT["messages"]


def test_a_client_that_asks_for_usage_has_its_body_untouched() -> None:
    body = json.dumps(CHAT | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    request = parse("chat", body)
    assert request.wants_usage
    assert request.engine_body("m") is body


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(max_size=8).filter(lambda key: key not in TEXT), JSON_VALUES, max_size=4),
    st.booleans(),
)
def test_renaming_a_pinned_model_changes_nothing_else(extra: dict[str, Any], stream: bool) -> None:
    known = {"stream", "stream_options", "max_tokens", "n", "best_of", "service_tier"}
    given_body = {key: value for key, value in extra.items() if key not in known}
    given_body |= {"model": "m@v2", "prompt": "hello", "stream": stream}
    sent = json.loads(parse("text_completion", json.dumps(given_body).encode()).engine_body("m"))
    expected = given_body | {"model": "m"}
    if stream:
        expected["stream_options"] = {"include_usage": True}
    assert sent == expected


@pytest.mark.parametrize(
    ("operation", "body", "tokens"),
    [
        ("chat", CHAT, 4096),
        ("chat", CHAT | {"max_tokens": 7}, 7),
        ("chat", CHAT | {"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ("chat", CHAT | {"max_tokens": 7, "n": 3}, 21),
        ("text_completion", TEXT, 16),
        ("text_completion", TEXT | {"max_tokens": 7, "n": 2, "best_of": 3}, 21),
        ("text_completion", TEXT | {"max_tokens": 7, "prompt": ["a", "b"]}, 14),
        ("text_completion", TEXT | {"max_tokens": 7, "prompt": [1, 2, 3]}, 7),
    ],
)
def test_the_output_budget_covers_all_choices(operation: Operation, body: Any, tokens: int) -> None:
    assert parse(operation, json.dumps(body).encode()).max_output_tokens == tokens


@pytest.mark.parametrize("unsafe", ["", "a b", "a\nb", "x" * 129, "é", None])
def test_an_unsafe_client_id_is_dropped(unsafe: str | None) -> None:
    assert client_request_id(unsafe) is None


def test_a_safe_client_id_is_kept() -> None:
    assert client_request_id("run:1/req_2.a-b") == "run:1/req_2.a-b"


def test_retry_after_is_in_whole_seconds_and_never_zero() -> None:
    assert ApiError(429, "m", retry_after_s=0.2).headers == {"Retry-After": "1"}
    assert ApiError(429, "m", retry_after_s=2.1).headers == {"Retry-After": "3"}
    assert ApiError(429, "m").headers == {}
