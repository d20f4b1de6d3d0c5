"""How long answers are: a distribution learned from those seen, by what is known before an answer begins. Pure.

The best sign of an answer's length is the answer before it in the same conversation (log-log correlation 0.65
and 0.77 on the Mooncake traces), then the prompt's length (-0.49 on the synthetic one). So there is one
histogram for each class of previous answer and, for conversations that are new, for each class of prompt. A
histogram with few answers leans on the one of all answers, and that on a broad guess.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenfleet.contracts.latency import LengthCounts

BINS_PER_OCTAVE = 3
OCTAVES = 16
BINS = BINS_PER_OCTAVE * OCTAVES
"""Answers from 1 to 65,536 tokens, each bin a quarter wider than the one before."""
CLASSES = OCTAVES + 1
"""Of previous answers and of prompts, an octave each."""
QUANTILES = np.array([1, 3, 5, 7, 9, 11, 13]) / 14
"""Seven equally likely cases stand for a whole distribution."""
GUESS_MEDIAN_TOKENS, GUESS_SIGMA = 200.0, 1.3
"""Before anything is known: log-normal, so broad that nine in ten answers have 25 to 1,700 tokens."""
GUESS_WEIGHT = 5.0
"""Answers that the guess counts for in the histogram of all."""
SHRINKAGE = 20.0
"""Answers that the histogram of all counts for in that of a class."""
REFRESH_AFTER = 32
"""Answers after which the quantiles are worked out anew."""
REMEMBERED_CHAINS = 100_000
MOST_CONTINUATIONS = 3
LONGEST_WALK_BLOCKS = 2_048
"""How far back from a prompt's end the previous turn is looked for."""

_EDGES = np.exp2(np.arange(BINS + 1) / BINS_PER_OCTAVE)
_LOG_EDGES = np.log(_EDGES)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


class OutputLengths:
    """Learns answers' lengths; answers with equally likely lengths given what is known."""

    def __init__(self) -> None:
        # Rows: classes of the previous answer, then classes of the prompt.
        self._counts: Floats = np.zeros((2 * CLASSES, BINS))
        self._answers: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By the last block of a prompt: tokens of its answer, and how many prompts have continued it."""
        self._since_refresh = 0
        self._quantiles = self._work_out()

    @property
    def quantiles(self) -> npt.NDArray[np.float64]:
        """Lengths by `[row, bin of the tokens out so far, quantile]`."""
        return self._quantiles

    def previous_answer(self, blocks: Sequence[int]) -> int | None:
        """Tokens of the last answer in the conversation that this prompt continues, if it was seen.

        A prompt that many others continue is a prefix they share, a system prompt say, and no conversation.
        """
        answers = self._answers
        latest = reversed(blocks[-LONGEST_WALK_BLOCKS:])
        last = next(filter(answers.__contains__, latest), None) if answers else None
        if last is None:
            return None
        tokens, continuations = answers[last]
        if continuations >= MOST_CONTINUATIONS:
            return None
        answers[last] = tokens, continuations + 1
        return tokens

    def row(self, input_tokens: int, previous_output_tokens: int | None) -> int:
        """Which row of `quantiles` tells of a request."""
        if previous_output_tokens is not None:
            return _octave(previous_output_tokens)
        return CLASSES + _octave(input_tokens)

    def learn(
        self,
        input_tokens: int,
        previous_output_tokens: int | None,
        output_tokens: int,
        last_block: int | None,
    ) -> None:
        """An answer is complete.

        Args:
            input_tokens: of its prompt.
            previous_output_tokens: what `previous_answer` said when the request was routed.
            output_tokens: its length.
            last_block: the last full block of its prompt, by which a next turn is recognised.
        """
        if output_tokens < 1:
            return
        column = min(int(BINS_PER_OCTAVE * math.log2(output_tokens)), BINS - 1)
        self._counts[CLASSES + _octave(input_tokens), column] += 1
        if previous_output_tokens is not None:
            self._counts[_octave(previous_output_tokens), column] += 1
        if last_block is not None:
            _, continuations = self._answers.get(last_block, (0, 0))
            self._answers[last_block] = output_tokens, continuations
            self._answers.move_to_end(last_block)
            if len(self._answers) > REMEMBERED_CHAINS:
                self._answers.popitem(last=False)
        self._since_refresh += 1
        if self._since_refresh >= REFRESH_AFTER:
            self._since_refresh = 0
            self._quantiles = self._work_out()

    def expected(self, row: int) -> float:
        """Mean length of an answer that has not begun, in tokens."""
        return float(self._quantiles[row, 0].mean())

    def counts(self) -> LengthCounts:
        """What was learned so far."""
        return LengthCounts(
            by_previous=self._counts[:CLASSES].tolist(), by_input=self._counts[CLASSES:].tolist()
        )

    def restore(self, counts: LengthCounts) -> None:
        """Take up what another process had learned.

        Raises:
            ValueError: it does not have this form.
        """
        restored = np.array([*counts.by_previous, *counts.by_input], dtype=float)
        if restored.shape != self._counts.shape or not np.isfinite(restored).all() or (restored < 0).any():
            raise ValueError(f"answer lengths of shape {restored.shape}; {self._counts.shape} expected")
        self._counts = restored
        self._quantiles = self._work_out()

    def _work_out(self) -> Floats:
        everything = self._counts[CLASSES:].sum(axis=0) + GUESS_WEIGHT * _GUESS
        blended = self._counts + SHRINKAGE * everything / everything.sum()
        reached = np.cumsum(blended, axis=1) / blended.sum(axis=1, keepdims=True)
        cdf = np.concatenate([np.zeros((len(blended), 1)), reached], axis=1)
        table = np.empty((len(cdf), BINS, len(QUANTILES)))
        for row in range(len(cdf)):
            below: Floats = cdf[row]
            start = below[:BINS, None]
            wanted = start + (1.0 - start) * QUANTILES
            table[row] = np.exp(np.interp(wanted, below, _LOG_EDGES))
        return table


def bins_of(tokens: Floats) -> Ints:
    """The bin of each count of tokens."""
    return np.minimum(BINS_PER_OCTAVE * np.log2(np.maximum(tokens, 1.0)), BINS - 1).astype(np.intp)


def _octave(tokens: int) -> int:
    return min(max(tokens, 1).bit_length() - 1, CLASSES - 1)


def _normal_cdf(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


_GUESS = np.diff([_normal_cdf((edge - math.log(GUESS_MEDIAN_TOKENS)) / GUESS_SIGMA) for edge in _LOG_EDGES])
