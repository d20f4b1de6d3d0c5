"""A stream is relayed byte for byte; only a usage event that the client did not ask for is left out."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.policy.happenings import Usage
from ingress.sse import EventRelay, StreamEnd

DONE = "data: [DONE]"


def event(**fields: Any) -> str:
    return f"data: {json.dumps(fields)}"


def text(content: str, finish_reason: str | None = None) -> str:
    return event(choices=[{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}])


USAGE = event(
    choices=[],
    usage={"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}},
)
HARD_TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(['"choices":[]', '{"choices": [], "usage": {}}', "data: [DONE]", "a\n\nb", "\r\n\r\n"]),
)


def relay(stream: bytes, cuts: list[int], *, strip_usage: bool) -> tuple[bytes, StreamEnd, EventRelay]:
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    events = EventRelay(strip_usage=strip_usage)
    out = b"".join(events.feed(stream[start:end]) for start, end in pairwise(edges))
    return out + events.finish(), events.end(), events


@given(
    st.lists(HARD_TEXTS, min_size=1, max_size=8),
    st.lists(st.integers(0, 5000), max_size=12),
    st.sampled_from(["\n\n", "\r\n\r\n"]),
)
def test_the_output_is_the_input_without_the_usage_event_wherever_the_chunks_are_cut(
    texts: list[str], cuts: list[int], blank: str
) -> None:
    before = [*(text(content) for content in texts), text("", "stop")]
    stream = "".join(line + blank for line in [*before, USAGE, DONE]).encode()
    kept = "".join(line + blank for line in [*before, DONE]).encode()
    out, end, _ = relay(stream, cuts, strip_usage=True)
    assert out == kept
    assert end == StreamEnd(usage=Usage(9, 4, 8), finish_reason="stop", whole=True, error=False)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=8))
def test_without_stripping_any_bytes_pass_unchanged(stream: bytes, cuts: list[int]) -> None:
    assert relay(stream, cuts, strip_usage=False)[0] == stream


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=8))
def test_stripping_leaves_alone_what_it_does_not_understand(stream: bytes, cuts: list[int]) -> None:
    assert relay(stream, cuts, strip_usage=True)[0] == stream


def test_an_event_is_relayed_as_soon_as_it_is_complete() -> None:
    events = EventRelay(strip_usage=True)
    first = text("a").encode() + b"\n\n"
    assert events.feed(first + b"data: {") == first


def test_usage_beside_choices_is_read_but_not_removed() -> None:
    last = event(
        choices=[{"index": 0, "text": "x", "finish_reason": "length"}],
        usage={"prompt_tokens": 3, "completion_tokens": 2},
    )
    stream = f"{last}\n\n{DONE}\n\n".encode()
    out, end, _ = relay(stream, [], strip_usage=True)
    assert out == stream
    assert end.usage == Usage(3, 2)
    assert end.finish_reason == "length"


@pytest.mark.parametrize(
    ("line", "is_token"),
    [
        (event(choices=[{"delta": {"role": "assistant", "content": ""}}]), False),
        (": a comment", False),
        (event(choices=[{"delta": {"content": "a"}}]), True),
        (event(choices=[{"delta": {"reasoning_content": "a"}}]), True),
        (event(choices=[{"delta": {"tool_calls": [{"index": 0}]}}]), True),
        (event(choices=[{"text": "a"}]), True),
        (event(choices=[{"text": "", "finish_reason": "stop"}]), True),
        (event(error={"message": "out of memory"}), False),
    ],
)
def test_the_first_token_is_the_first_event_that_carries_one(line: str, is_token: bool) -> None:
    events = EventRelay(strip_usage=False)
    events.feed(f"{line}\n\n".encode())
    assert events.has_token is is_token


def test_events_are_counted_without_being_parsed() -> None:
    stream = (text("a") + "\n\n") * 7
    assert relay(stream.encode(), [3, 90, 200], strip_usage=True)[2].events == 7


def test_a_stream_cut_short_is_not_whole() -> None:
    assert not relay(f"{text('a')}\n\n".encode(), [], strip_usage=True)[1].whole


def test_an_error_event_at_the_end_is_noticed() -> None:
    stream = f"{text('a')}\n\n{event(error={'message': 'lost'})}\n\n{DONE}\n\n".encode()
    assert relay(stream, [], strip_usage=True)[1].error


def test_the_end_of_a_long_stream_is_still_read() -> None:
    stream = ((text("word ") + "\n\n") * 2000 + f"{text('', 'stop')}\n\n{USAGE}\n\n{DONE}\n\n").encode()
    _, end, events = relay(stream, list(range(0, len(stream), 777)), strip_usage=True)
    assert end.usage == Usage(9, 4, 8)
    assert events.events == 2003
