"""A chat request as its model's chat template sees it.

Engines do not hand a client's messages to the template as they are. What is done here is what vLLM does with
them (`vllm.renderers`, as of 0.32): which fields survive, how content parts are joined, what tool arguments look
like, which variables the template is given.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ingress.validation import ChatBody, CompletionBody

ContentFormat = Literal["string", "openai"]
"""Whether the template takes a message's content as one string or as a list of parts."""

Message = dict[str, Any]

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The content parts that are text, and the field that holds it."""
_PART_FIELDS = {"type", "text", "refusal", "thinking"}
_MEDIA_FIELDS = {
    "image_url", "input_image", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds", "video_url",
    "video_embeds", "prompt_embeds", "file",
}  # fmt: skip
_FUNCTION_FIELDS = ("name", "description", "parameters")
_OPTIONAL_FUNCTION_FIELDS = ("strict", "defer_loading")


class UnknownPromptError(Exception):
    """What the engine will compute for this request cannot be told from its text."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What shapes the prompt of a chat."""

    messages: list[Message]
    """As the client sent them."""
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]
    """Besides the messages, the tools and the special tokens: what the template is given."""
    add_special_tokens: bool

    @property
    def continues(self) -> bool:
        """Whether the last message is to be continued rather than answered."""
        return bool(self.variables["continue_final_message"])


def is_salted(body: ChatBody | CompletionBody) -> bool:
    """Whether the engine keeps this request's blocks apart from equal ones of other requests."""
    return bool(body.cache_salt or body.extra_key)


def check_text(body: ChatBody | CompletionBody) -> None:
    """Check that the prompt is a text, and all of it.

    Raises:
        UnknownPromptError: it holds images or the like, is cut by the engine, or is not the prompt at all.
    """
    if body.truncate_prompt_tokens is not None:
        raise UnknownPromptError("the engine truncates it")
    if isinstance(body.kv_transfer_params, dict) and body.kv_transfer_params.get("prompt_token_ids"):
        raise UnknownPromptError("other token ids are given for it")
    if isinstance(body, CompletionBody):
        if body.prompt_embeds is not None:
            raise UnknownPromptError("it is given as embeddings")
        return
    for message in body.messages:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                _check_part(part)


def chat_of(body: ChatBody) -> Chat:
    """What shapes the prompt of a chat request.

    Raises:
        UnknownPromptError: it brings its own template, or the engine will refuse it.
    """
    given = body.chat_template_kwargs or {}
    if not isinstance(given, dict):
        raise UnknownPromptError("chat_template_kwargs is no object")
    if body.chat_template is not None or given.keys() & {"chat_template", "tokenize"}:
        raise UnknownPromptError("the request brings its own chat template")
    own: dict[str, Any] = {
        "add_generation_prompt": True if body.add_generation_prompt is None else body.add_generation_prompt,
        "continue_final_message": bool(body.continue_final_message),
        "documents": body.documents,
        "reasoning_effort": body.reasoning_effort,
    }
    if own["add_generation_prompt"] and own["continue_final_message"]:
        raise UnknownPromptError("it asks for a new message and for the last one's continuation")
    if body.reasoning_effort is not None and "enable_thinking" not in given:
        own["enable_thinking"] = body.reasoning_effort != "none"
    variables = _set(given) | _set(own)
    tools = variables.pop("tools", None) or _tools(body.tools)
    return Chat(body.messages, tools, variables, bool(body.add_special_tokens))


def conversation(messages: Sequence[Message], content_format: ContentFormat) -> list[Message]:
    """The messages as the template is given them.

    Raises:
        UnknownPromptError: a message is of a kind that engines refuse.
    """
    return [_message(message, content_format) for message in messages]


def developer_as_system(messages: Sequence[Message]) -> list[Message]:
    """For a template that knows no developers: their messages become the system's, all of them one that comes first."""
    renamed = [
        {**message, "role": "system"} if message["role"] == "developer" else message for message in messages
    ]
    if all(message["role"] != "system" for message in renamed[1:]):
        return renamed
    texts = [_joined(message["content"]) for message in renamed if message["role"] == "system"]
    others = [message for message in renamed if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(text for text in texts if text)}, *others]


def _set(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that engines take as not given."""
    return {name: value for name, value in variables.items() if value is not None and value != "auto"}


def _check_part(part: object) -> None:
    if isinstance(part, str):
        return
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise UnknownPromptError("its content is not text alone")
    if part.keys() & _MEDIA_FIELDS:
        raise UnknownPromptError("its content is not text alone")


def _message(message: Message, content_format: ContentFormat) -> Message:
    role, content = message["role"], message.get("content")
    parts = [content] if isinstance(content, str) else content or []
    built = [part for part in (_part(part) for part in parts) if part is not None]
    shown: Message = {"role": role}
    if content_format == "string":
        shown["content"] = "\n".join(part["text"] for part in built if part["text"])
    else:
        shown["content"] = _joined(built) if role == "tool" else built
    if role == "assistant":
        shown |= _assistant_fields(message)
    if role == "tool" and message.get("tool_call_id") is not None:
        shown["tool_call_id"] = message["tool_call_id"]
    if role == "developer" and message.get("tools") is not None:
        shown["tools"] = message["tools"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            shown[name] = message[name]
    return shown


def _part(part: str | dict[str, Any]) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    text = part.get(_TEXT_PARTS[part.get("type", "text")])
    if not isinstance(text, str):
        return None
    extra = {name: value for name, value in part.items() if name not in _PART_FIELDS}
    return {"type": "text", "text": text, **extra}


def _assistant_fields(message: Message) -> Message:
    fields: Message = {}
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        fields = {"reasoning": reasoning, "reasoning_content": reasoning, "thinking": reasoning}
    if calls := message.get("tool_calls"):
        fields["tool_calls"] = [_tool_call(call) for call in calls]
    return fields


def _tool_call(call: object) -> dict[str, Any]:
    """A call with its arguments as a mapping, and its fields in the order engines put them: templates may print them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise UnknownPromptError("a tool call is no function call")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    shown = {"id": call.get("id"), "function": {"arguments": arguments, "name": function.get("name")}}
    return {name: value for name, value in shown.items() if value is not None} | {"type": "function"}


def _tools(tools: object) -> list[dict[str, Any]] | None:
    """The tools with all of the fields an engine fills in, and none that it does not know."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise UnknownPromptError("tools is no list of tools")
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
        raise UnknownPromptError("a tool is no function")
    function = dict(tool["function"])
    deferred = tool.get("defer_loading")
    if deferred is not None:
        function.setdefault("defer_loading", deferred)
    shown = {name: function.get(name) for name in _FUNCTION_FIELDS}
    shown |= {name: function[name] for name in _OPTIONAL_FUNCTION_FIELDS if function.get(name) is not None}
    extra = {} if deferred is None else {"defer_loading": deferred}
    return {"type": tool.get("type", "function"), "function": shown, **extra}


def _joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
