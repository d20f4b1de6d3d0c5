"""A model's tokenizer and chat template, as Hugging Face keeps them in a folder. Nothing is ever fetched."""

import os
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import numpy as np
from tokenizers import AddedToken, Tokenizer

from ingress.tokenization.chat import Chat
from ingress.tokenization.segments import Segmenter, TokenCache
from ingress.tokenization.template import ChatTemplate
from tokenfleet.blocks import TokenIds
from tokenfleet.errors import ConfigurationError

_PROBE = "a"
_TOOL_TEMPLATE = "tool_use"


class LocalTokenizer:
    """Computes the ids of prompts. Safe to use in several threads."""

    def __init__(self, tokenizer: Tokenizer, templates: dict[str, ChatTemplate], cache: TokenCache) -> None:
        self._segmenter = Segmenter(tokenizer, cache)
        self._templates = templates
        self._before, self._after = _affixes(tokenizer)

    @classmethod
    def load(cls, folder: Path, cache: TokenCache) -> "LocalTokenizer":
        """Read `tokenizer.json`, `tokenizer_config.json` and the chat templates of a folder.

        Raises:
            ConfigurationError: one of them is missing or cannot be used.
        """
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigurationError(
                f"{folder} has no tokenizer.json. Name a folder that holds the model's Hugging Face tokenizer."
            )
        # One prompt is one thread's work; the pieces of one would otherwise take every core.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        config = _json(folder / "tokenizer_config.json")
        try:
            tokenizer = Tokenizer.from_file(str(file))
            special_tokens = _complete(tokenizer, config, _json(folder / "special_tokens_map.json"))
        except Exception as error:  # The library raises nothing more specific.
            raise ConfigurationError(f"{file} is no tokenizer: {error}") from error
        sources = _template_sources(folder, config)
        templates: dict[str, ChatTemplate] = {}
        for name, source in sources.items():
            try:
                templates[name] = ChatTemplate(source, special_tokens)
            except jinja2.TemplateError as error:
                raise ConfigurationError(f"The chat template {name} of {folder} is wrong: {error}") from error
        return cls(tokenizer, templates, cache)

    @property
    def takes_chats(self) -> bool:
        """Whether there is a chat template."""
        return "default" in self._templates

    def chat(self, chat: Chat) -> TokenIds:
        """The token ids of a chat's prompt.

        Raises:
            UnknownPromptError: the template refuses it.
        """
        template = self._templates["default"]
        if chat.tools:
            template = self._templates.get(_TOOL_TEMPLATE, template)
        return self.text(template.render(chat), chat.add_special_tokens)

    def text(self, text: str, add_special_tokens: bool) -> TokenIds:
        """The token ids of a text, with those that begin and end a sequence if asked for."""
        ids = self._segmenter.ids(text)
        return np.concatenate((self._before, ids, self._after)) if add_special_tokens else ids


def _json(file: Path) -> dict[str, Any]:
    """A file's fields; none if there is no such file."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def _complete(tokenizer: Tokenizer, config: dict[str, Any], legacy: dict[str, Any]) -> dict[str, str]:
    """Give the tokenizer what only its configuration says, as Hugging Face does; returns its named special tokens."""
    # What begins and ends a sequence is the file's own post-processor, whatever the configuration says of it.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # A later save of the configuration made the separate map of special tokens obsolete.
    fields = config if "added_tokens_decoder" in config else config | legacy
    named = {
        name: token
        for name, value in fields.items()
        if name.endswith("_token") and (token := _content(value))
    }
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    declared = [AddedToken(**_flags(token)) for _, token in sorted(_declared(config))]
    declared += [AddedToken(token, special=True, normalized=False) for token in named.values()]
    tokenizer.add_tokens([token for token in declared if token.content not in known])
    return named


def _declared(config: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    return [(int(id_), token) for id_, token in config.get("added_tokens_decoder", {}).items()]


def _flags(token: dict[str, Any]) -> dict[str, Any]:
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {name: token[name] for name in names if name in token}


def _content(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name: files of their own before the configuration's."""
    given = config.get("chat_template") or {}
    if isinstance(given, str):
        given = {"default": given}
    elif isinstance(given, list):
        given = {template["name"]: template["template"] for template in given}
    files = {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    if (main := folder / "chat_template.jinja").is_file():
        files["default"] = main
    return {name: file.read_text("utf-8") for name, file in files.items()} or given


def _affixes(tokenizer: Tokenizer) -> tuple[TokenIds, TokenIds]:
    """The ids that begin and end a sequence."""
    plain = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    whole = tokenizer.encode(_PROBE, add_special_tokens=True).ids
    start = next(
        (at for at in range(len(whole)) if whole[at : at + len(plain)] == plain),
        None,
    )
    if start is None:
        raise ConfigurationError("The tokenizer's post-processor does more than to begin and end a sequence.")
    before, after = whole[:start], whole[start + len(plain) :]
    return np.array(before, dtype=np.uint32), np.array(after, dtype=np.uint32)
