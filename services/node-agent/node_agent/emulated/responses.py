"""OpenAI response bodies and stream chunks."""

from typing import Any

import msgspec

from node_agent.emulated.driver import Generation
from node_agent.emulated.text import Answer

DONE = b"data: [DONE]\n\n"


class ResponseWriter:
    """Encodes the answer to one request, whole or in chunks.

    Args:
        chat: whether it is a chat completion.
        response_id: the request's id.
        model: the name of the served model.
        created: unix seconds.
        answer: what the model says.
    """

    def __init__(self, *, chat: bool, response_id: str, model: str, created: int, answer: Answer) -> None:
        self._chat = chat
        self._head = {"id": response_id, "created": created, "model": model}
        self._answer = answer
        self._sent_tokens = 0

    def whole(self, generation: Generation) -> bytes:
        """The body of an answer that is not streamed."""
        text = self._answer.text(0, generation.produced_tokens)
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": generation.finish_reason}
        kind = "chat.completion" if self._chat else "text_completion"
        return msgspec.json.encode(
            {**self._head, "object": kind, "choices": [choice], "usage": _usage(generation)}
        )

    def chunk(self, generation: Generation) -> bytes:
        """The next stream event: all tokens produced since the one before."""
        first = self._sent_tokens == 0
        text = self._answer.text(self._sent_tokens, generation.produced_tokens)
        self._sent_tokens = generation.produced_tokens
        content: dict[str, Any] = {"text": text}
        if self._chat:
            content = {"delta": {"role": "assistant", "content": text} if first else {"content": text}}
        reason = generation.finish_reason if generation.finished else None
        return self._event([{"index": 0, **content, "logprobs": None, "finish_reason": reason}])

    def usage_chunk(self, generation: Generation) -> bytes:
        """The stream event with the token counts, which has no choices."""
        return self._event([], usage=_usage(generation))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        body = {**self._head, "object": kind, "choices": choices, **more}
        return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _usage(generation: Generation) -> dict[str, Any]:
    prompt_tokens = len(generation.prompt)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generation.produced_tokens,
        "total_tokens": prompt_tokens + generation.produced_tokens,
        "prompt_tokens_details": {"cached_tokens": generation.reused_tokens},
    }
