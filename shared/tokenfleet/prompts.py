"""How a chat becomes tokens when there is no tokenizer.

Ingress and the emulated engine must see the same tokens, or no prefix that one of them hashes is known to the
other. Real engines apply their model's own chat template; this one only has its useful property: the tokens
of a conversation begin with those of every earlier state of it.
"""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from tokenfleet.blocks import CHARS_PER_TOKEN, TokenIds


def chat_tokens(messages: Iterable[tuple[str, str]]) -> TokenIds:
    """Pseudo-tokens of a chat's (role, text) messages, followed by the header of the coming answer.

    Headers and texts each start a new token, so a message's tokens do not depend on what stands before it.
    """
    parts: list[bytes] = []
    for role, text in messages:
        parts.append(_padded(f"<|{role}|>"))
        parts.append(_padded(text))
    parts.append(_padded("<|assistant|>"))
    return np.frombuffer(b"".join(parts), dtype="<u4").astype(np.uint32, copy=False)


def content_text(content: object) -> str:
    """The text of a chat message's `content`: a string, null, or OpenAI content parts.

    Text parts are joined; of any other part (an image, a file) only its place counts, as `<|type|>`.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(_part_text(part) for part in cast("list[object]", content))


def _part_text(part: object) -> str:
    if not isinstance(part, dict):
        return ""
    fields = cast("dict[str, Any]", part)
    text = fields.get("text")
    return text if isinstance(text, str) else f"<|{fields.get('type', '')}|>"


def _padded(text: str) -> bytes:
    data = text.encode()
    return data + b"\n" * (-len(data) % CHARS_PER_TOKEN)
