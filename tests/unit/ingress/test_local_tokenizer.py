"""A folder as Hugging Face's tools leave it gives the ids that they give."""

import json
from pathlib import Path

import pytest
import tiny_tokenizers as tiny
from tokenizers import Tokenizer

from ingress.gateway import load_tokenizers
from ingress.settings import IngressSettings
from ingress.tokenization.chat import Chat
from ingress.tokenization.local import LocalTokenizer
from ingress.tokenization.segments import TokenCache
from tokenfleet.errors import ConfigurationError

HI = [{"role": "user", "content": "hi"}]


def load(folder: Path) -> LocalTokenizer:
    return LocalTokenizer.load(folder, TokenCache(1 << 16))


def chat(tools: list[dict[str, object]] | None = None, **variables: object) -> Chat:
    both = {"add_generation_prompt": True, "continue_final_message": False}
    return Chat(HI, tools, both | variables, False)


@pytest.mark.parametrize("tokenizer", [tiny.with_bos(), tiny.byte_level(), tiny.prepending()])
@pytest.mark.parametrize("special_tokens", [True, False])
def test_a_text_has_the_ids_of_the_whole_tokenizer(
    tmp_path: Path, tokenizer: Tokenizer, special_tokens: bool
) -> None:
    text = "".join(tiny.SENTENCES)
    ids = load(tiny.folder(tmp_path, tokenizer)).text(text, special_tokens)
    assert ids.tolist() == tokenizer.encode(text, add_special_tokens=special_tokens).ids


def test_a_file_that_truncates_or_pads_does_neither_here(tmp_path: Path) -> None:
    cutting = Tokenizer.from_str(tiny.byte_level().to_str())
    cutting.enable_truncation(5)
    cutting.enable_padding(length=50)
    text = tiny.SENTENCES[1]
    ids = load(tiny.folder(tmp_path, cutting)).text(text, False)
    assert ids.tolist() == tiny.byte_level().encode(text).ids


def test_tokens_that_only_the_configuration_knows_are_tokens(tmp_path: Path) -> None:
    size = tiny.byte_level().get_vocab_size()
    flags = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    added = {str(size): {"content": "<|new|>", **flags}}
    folder = tiny.folder(tmp_path, tiny.byte_level(), added_tokens_decoder=added, pad_token="<|pad|>")
    assert load(folder).text("<|new|><|pad|>", False).tolist() == [size, size + 1]


def test_the_template_is_given_the_named_special_tokens(tmp_path: Path) -> None:
    folder = tiny.folder(
        tmp_path, tiny.byte_level(), "{{ bos_token }}{{ eos_token }}{{ sep_token is defined }}"
    )
    ids = load(folder).chat(chat())
    assert ids.tolist() == tiny.byte_level().encode("<s></s>False").ids


def test_a_template_in_the_configuration_serves_where_there_is_no_file(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    folder = tiny.folder(tmp_path, tiny.byte_level(), None, chat_template=templates)
    tokenizer = load(folder)
    assert tokenizer.chat(chat()).tolist() == tiny.byte_level().encode("plain").ids
    assert tokenizer.chat(chat([{"type": "function"}])).tolist() == tiny.byte_level().encode("tools").ids
    (folder / "chat_template.jinja").write_text("file")
    assert load(folder).chat(chat()).tolist() == tiny.byte_level().encode("file").ids


def test_without_a_template_there_are_no_chats(tmp_path: Path) -> None:
    assert not load(tiny.folder(tmp_path, tiny.byte_level(), None)).takes_chats


class TestWrongFolders:
    def check(self, folder: Path, message: str) -> None:
        settings = IngressSettings(ingress_tokenizers={"llama": folder})
        with pytest.raises(ConfigurationError, match=message) as error:
            load_tokenizers(settings)
        assert "TOKENFLEET_INGRESS_TOKENIZERS, llama" in str(error.value)

    def test_no_tokenizer(self, tmp_path: Path) -> None:
        self.check(tmp_path, "has no tokenizer.json")

    def test_no_folder(self, tmp_path: Path) -> None:
        self.check(tmp_path / "nowhere", "has no tokenizer.json")

    def test_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": "?"}))
        self.check(tmp_path, "is no tokenizer")

    def test_a_broken_configuration(self, tmp_path: Path) -> None:
        tiny.folder(tmp_path, tiny.byte_level())
        (tmp_path / "tokenizer_config.json").write_text("{")
        self.check(tmp_path, "cannot be read")

    def test_a_broken_template(self, tmp_path: Path) -> None:
        self.check(tiny.folder(tmp_path, tiny.byte_level(), "{% if %}"), "chat template default")


def test_the_folders_come_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENFLEET_INGRESS_TOKENIZERS", '{"llama-70b": "/models/llama"}')
    assert IngressSettings().ingress_tokenizers == {"llama-70b": Path("/models/llama")}
