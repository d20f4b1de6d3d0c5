"""Tokenizes a text piece by piece, so that what was tokenized before is not tokenized again.

A tokenizer cuts a text at its added tokens (`<|im_start|>` and the like) before anything else, and then treats
each piece by itself. So the ids of a text are those of the parts left and right of such a token, put together,
whatever the parts are: no merge reaches across. Only there is a text cut here; one without such tokens stays
whole. Tokens that take the spaces before them, that depend on their neighbours, or that are looked for only after
normalization are no places to cut.
"""

import hashlib
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import AddedToken, Tokenizer

from tokenfleet.blocks import TokenIds

MIN_SEGMENT_CHARS = 64
"""Shorter pieces are joined to the next one: a look-up costs about as much as tokenizing them."""
ENTRY_TOKENS = 64
"""What a cached piece counts for besides its tokens: the room its key and its array take."""


class TokenCache:
    """The ids of pieces of text, least recently used out first. Several threads may use it.

    Pieces are known by keyed 16-byte hashes; the texts themselves are not kept.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._held_tokens = 0
        self._pieces: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def held_tokens(self) -> int:
        """What it holds, counted as its capacity is."""
        return self._held_tokens

    def get(self, keys: Sequence[bytes]) -> list[TokenIds | None]:
        with self._lock:
            found = [self._pieces.get(key) for key in keys]
            for key, ids in zip(keys, found, strict=True):
                if ids is not None:
                    self._pieces.move_to_end(key)
            return found

    def put(self, pieces: Iterable[tuple[bytes, TokenIds]]) -> None:
        with self._lock:
            for key, ids in pieces:
                if key not in self._pieces:
                    self._held_tokens += len(ids) + ENTRY_TOKENS
                self._pieces[key] = ids
            while self._held_tokens > self._capacity_tokens:
                _, ids = self._pieces.popitem(last=False)
                self._held_tokens -= len(ids) + ENTRY_TOKENS


class Segmenter:
    """Tokenizes with one tokenizer through a cache."""

    def __init__(self, tokenizer: Tokenizer, cache: TokenCache) -> None:
        self._tokenizer = tokenizer
        self._cache = cache
        self._key = secrets.token_bytes(16)
        added = list(tokenizer.get_added_tokens_decoder().values())
        raw = sorted((token.content for token in added if not token.normalized), key=len, reverse=True)
        self._cuts = frozenset(token.content for token in added if _is_cut(token))
        # As the tokenizer finds them: the leftmost, and of those the longest.
        self._tokens = re.compile("|".join(map(re.escape, raw)))
        if not self._cuts or any(token.single_word for token in added):
            self._cuts = frozenset[str]()

    def ids(self, text: str) -> TokenIds:
        """The token ids of a text, without those that begin or end a sequence."""
        pieces = self.cut(text)
        keys = [self._digest(piece) for piece in pieces]
        found = self._cache.get(keys)
        missing = [position for position, ids in enumerate(found) if ids is None]
        if missing:
            # Not `encode`: it holds the interpreter's lock, and with it every other request, until it is done.
            encodings = self._tokenizer.encode_batch_fast(
                [pieces[position] for position in missing], add_special_tokens=False
            )
            for position, encoding in zip(missing, encodings, strict=True):
                found[position] = np.array(encoding.ids, dtype=np.uint32)
        arrays = [ids for ids in found if ids is not None]
        self._cache.put((keys[position], arrays[position]) for position in missing)
        return np.concatenate(arrays)

    def cut(self, text: str) -> Sequence[str]:
        """The pieces of a text that are tokenized by themselves; those of a longer text begin with the same ones."""
        if not self._cuts:
            return [text]
        starts = [0]
        for match in self._tokens.finditer(text):
            if match[0] in self._cuts and match.start() - starts[-1] >= MIN_SEGMENT_CHARS:
                starts.append(match.start())
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

    def _digest(self, piece: str) -> bytes:
        return hashlib.blake2b(piece.encode(), digest_size=16, key=self._key).digest()


def _is_cut(token: AddedToken) -> bool:
    return not (token.normalized or token.lstrip or token.content[:1].isspace())
