"""Tokenizers of several kinds, trained on the spot on a few sentences, and folders that hold them as Hugging Face's do."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CHATML = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}"
    "{% if tools %}{{ '<|im_start|>tools\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
"""The usual form of chat template, with content as a string."""

PARTS = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] | trim }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""One that takes content as a list of parts, begins with the token that begins a sequence, and trims texts."""

SENTENCES = (
    "You are a helpful assistant. Answer the question, and say where you found it.",
    "The quick brown fox jumps over the lazy dog; the dog's owner isn't amused, she's at 10,000 feet.",
    "Weather in Zürich: 12 °C,  light rain — wind 5 km/h.\n\n\tif x == 1:\n\t\treturn {'a': [1, 2, 3]}\n",
    "<|im_start|>user\nWhat's the weather?<|im_end|>\n<|im_start|>assistant\nIt rains.<|im_end|>\n",
)
TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im", "<think>", "</think>")
"""One of them begins like others do."""
_GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def special(content: str, **flags: Any) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


@functools.cache
def byte_level(*, prefix_space: bool = False) -> Tokenizer:
    """As GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return _trained(tokenizer, alphabet=pre_tokenizers.ByteLevel.alphabet())


@functools.cache
def with_bos() -> Tokenizer:
    """As Llama 3's: its own pattern, and a token that begins every sequence."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_GPT4), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    _trained(tokenizer, alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


@functools.cache
def prepending() -> Tokenizer:
    """As Llama 2's was: every piece of text gets a leading mark, unknown characters become bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _trained(tokenizer, extra=["<unk>"])


@functools.cache
def metaspace(scheme: str) -> Tokenizer:
    """As SentencePiece models' are: `first` marks only what begins the text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)  # type: ignore[arg-type]
    return _trained(tokenizer, extra=["<unk>"])


@functools.cache
def normalizing() -> Tokenizer:
    """Normalizes before it splits, and has tokens that it looks for only then."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    _trained(tokenizer, alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_tokens([AddedToken("lazy", normalized=True)])
    return tokenizer


@functools.cache
def greedy_tokens() -> Tokenizer:
    """Has added tokens that take the spaces around them."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens([special("<mask>", lstrip=True), special("<sep>", rstrip=True)])
    return tokenizer


@functools.cache
def whole_words() -> Tokenizer:
    """Has an added token that is one only between word boundaries."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_tokens([AddedToken("fox", single_word=True, normalized=False)])
    return tokenizer


def folder(path: Path, tokenizer: Tokenizer, template: str | None = CHATML, **configuration: Any) -> Path:
    """A folder with the tokenizer, as `save_pretrained` leaves one."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True, "normalized": False},
    }
    (path / "tokenizer_config.json").write_text(json.dumps(fields | configuration))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


def _trained(tokenizer: Tokenizer, *, alphabet: Iterable[str] = (), extra: Iterable[str] = ()) -> Tokenizer:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if extra else []
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[*extra, *bytes_, *map(special, TOKENS)],
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    return tokenizer
