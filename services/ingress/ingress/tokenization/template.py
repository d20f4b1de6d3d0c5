"""A model's chat template: Jinja, sandboxed, with the names that Hugging Face's templates expect."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ingress.tokenization.chat import (
    Chat,
    ContentFormat,
    UnknownPromptError,
    conversation,
    developer_as_system,
)
from ingress.tokenization.content_format import content_format

_MARK = "\ue0f0end of the text to continue\ue0f1 "
"""Put behind a text to find its end in the rendered prompt. It ends in a space to show whether the template trims."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model is trained on; for a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatTemplate:
    """Renders chats.

    Raises:
        jinja2.TemplateError: the source is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)
        self._content_format: ContentFormat = content_format(environment.parse(source))
        self._knows_developers = '"developer"' in source or "'developer'" in source

    def render(self, chat: Chat) -> str:
        """The text of a chat's prompt.

        Raises:
            UnknownPromptError: the template refuses the chat, or it is of a kind that engines refuse.
        """
        messages = conversation(chat.messages, self._content_format)
        if not self._knows_developers and any(message["role"] == "developer" for message in messages):
            messages = developer_as_system(messages)
        if chat.continues:
            _mark_end(messages[-1])
        names = {
            "documents": None,
            **self._special_tokens,
            **chat.variables,
            "messages": messages,
            "tools": chat.tools,
        }
        try:
            text = self._template.render(names)
        except Exception as error:  # Whatever a template's expressions may raise.
            raise UnknownPromptError(f"the chat template refuses it: {error}") from error
        return _to_mark(text) if chat.continues else text


def _mark_end(message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _MARK
    elif content:
        content[-1]["text"] += _MARK
    else:
        raise UnknownPromptError("the last message has no text to continue")


def _to_mark(text: str) -> str:
    end = text.rfind(_MARK.rstrip())
    if end < 0:
        raise UnknownPromptError("the chat template leaves out the text to continue")
    return text[:end] if text.startswith(_MARK, end) else text[:end].rstrip()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    # The local date without a zone: what the engine's own template sees.
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's filter, which escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
