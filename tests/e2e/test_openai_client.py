"""The official client works against TokenFleet: streaming, cancelling and failing included."""

from collections.abc import Iterator

import openai
import pytest
from ledger_rows import row_of
from running_stack import RunningStack, until

pytestmark = pytest.mark.e2e


@pytest.fixture
def client(running_stack: RunningStack) -> Iterator[openai.OpenAI]:
    running_stack.wait_ready(4)
    with openai.OpenAI(
        base_url=f"{running_stack.api_url}/v1", api_key=running_stack.api_key, max_retries=0
    ) as connection:
        yield connection


def ask(client: openai.OpenAI, model: str = "llama-70b", **arguments):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell me about queues."}], **arguments
    )


def test_an_answer(client: openai.OpenAI):
    answer = ask(client, max_tokens=20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    assert answer.choices[0].message.content


def test_a_streamed_answer_arrives_in_pieces_and_without_a_usage_nobody_asked_for(client: openai.OpenAI):
    chunks = list(ask(client, max_tokens=40, stream=True))
    assert len(chunks) > 2
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_usage_is_there_when_it_was_asked_for(client: openai.OpenAI):
    chunks = list(ask(client, max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12


def test_text_completions_and_both_models(client: openai.OpenAI):
    assert {model.id for model in client.models.list()} >= {"llama-70b", "tiny"}
    for model in ("llama-70b", "tiny", "tiny@2"):
        answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=5)
        assert answer.usage is not None and answer.usage.completion_tokens == 5


def test_a_client_that_leaves_while_streaming_is_a_cancelled_row_with_its_partial_tokens(
    client: openai.OpenAI, running_stack: RunningStack
):
    stream = ask(client, max_tokens=2000, stream=True, extra_headers={"x-request-id": "cancel-1"})
    for _, _chunk in zip(range(3), stream, strict=False):
        pass
    stream.close()
    row = until(lambda: row_of(running_stack, "cancel-1"))
    assert row["outcome"] == "cancelled"
    assert 0 < row["output_tokens"] < 2000
    assert not row["tokens_exact"]


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        ({"model": "gpt-17"}, openai.NotFoundError, "model_not_found"),
        ({"model": "tiny@99"}, openai.NotFoundError, "model_not_found"),
        ({"max_tokens": -1}, openai.BadRequestError, None),
        ({"extra_body": {"stream": "yes"}}, openai.BadRequestError, None),
        ({"extra_body": {"messages": "hello"}}, openai.BadRequestError, None),
    ],
)
def test_errors_are_openais(client: openai.OpenAI, arguments, error, code):
    with pytest.raises(error) as raised:
        ask(client, **arguments)
    body = raised.value.body
    assert isinstance(body, dict)
    assert body["message"]
    assert {"type", "param", "code"} <= body.keys()
    if code:
        assert body["code"] == code


def test_a_wrong_key_is_401(running_stack: RunningStack):
    client = openai.OpenAI(base_url=f"{running_stack.api_url}/v1", api_key="tf-wrong", max_retries=0)
    with client, pytest.raises(openai.AuthenticationError):
        ask(client)


def test_a_50_mb_body_is_413_and_leaves_nothing_behind(running_stack: RunningStack, client: openai.OpenAI):
    with pytest.raises(openai.APIStatusError) as raised:
        client.completions.create(
            model="llama-70b",
            prompt="x" * 50_000_000,
            max_tokens=1,
            extra_headers={"x-request-id": "too-big"},
        )
    assert raised.value.status_code == 413
    assert client.completions.create(model="tiny", prompt="still here", max_tokens=1).choices
    assert row_of(running_stack, "too-big") is None
