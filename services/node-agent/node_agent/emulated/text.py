"""What the emulated model says, and how much of it: both follow from the prompt alone.

A token is four characters. Output lengths are lognormal with the median and spread of chat traffic (the
Mooncake conversation trace: median 350, 90th percentile about 600).
"""

import hashlib
import math
from statistics import NormalDist
from string import ascii_lowercase

import msgspec

from tokenfleet.blocks import TokenIds

_MEDIAN_TOKENS = 350
_SPREAD = 0.42
_MAX_TOKENS = 2_000
_CONSONANTS = "".join(letter for letter in ascii_lowercase if letter not in "aeiou")
_WORDS = tuple(f"{a}{b}{c} " for a in _CONSONANTS for b in "aeiou" for c in _CONSONANTS)


class Answer(msgspec.Struct, frozen=True):
    """The whole answer to a prompt, of which a request's limits may leave only the beginning."""

    output_tokens: int
    seed: int

    def text(self, start: int, end: int) -> str:
        """The text of output tokens `start` to `end`."""
        first, step, words = self.seed % len(_WORDS), 1 + self.seed % 997, len(_WORDS)
        return "".join([_WORDS[(first + index * step) % words] for index in range(start, end)])


def answer_to(prompt: TokenIds) -> Answer:
    """What the model answers to a prompt."""
    digest = hashlib.blake2b(prompt.tobytes(), digest_size=16).digest()
    share = (int.from_bytes(digest[:6]) + 0.5) / 2**48
    tokens = round(math.exp(NormalDist(math.log(_MEDIAN_TOKENS), _SPREAD).inv_cdf(share)))
    return Answer(min(max(tokens, 1), _MAX_TOKENS), int.from_bytes(digest[8:]))
