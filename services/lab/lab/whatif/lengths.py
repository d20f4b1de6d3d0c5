"""How long the answers are that nobody saw the end of: as long as those of similar requests that completed."""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tokenfleet.contracts.requests import Ended

ENOUGH = 5
"""Completed requests of a class and octave of input length; with fewer, the whole class is drawn from."""


class Lengths:
    """Output tokens of completed requests.

    Args:
        completed: `(class, how it ended)` of each.
    """

    def __init__(self, completed: Iterable[tuple[str, Ended]]) -> None:
        alike: dict[tuple[str, int], list[int]] = defaultdict(list)
        of_class: dict[str, list[int]] = defaultdict(list)
        every: list[int] = []
        for request_class, ended in completed:
            tokens = max(1, ended.output_tokens)
            alike[request_class, ended.input_tokens.bit_length()].append(tokens)
            of_class[request_class].append(tokens)
            every.append(tokens)
        self._alike: Mapping[tuple[str, int], Sequence[int]] = alike
        self._of_class: Mapping[str, Sequence[int]] = of_class
        self._every: Sequence[int] = every

    def __len__(self) -> int:
        return len(self._every)

    def draw(
        self, drawn: random.Random, request_class: str, input_tokens: int, *, seen: int, most: int
    ) -> int:
        """The length of one answer.

        Args:
            drawn: makes the draw.
            request_class: of the request.
            input_tokens: of its prompt.
            seen: tokens of it that were seen, after which more would have followed.
            most: that the client asked for.
        """
        choices = self._alike.get((request_class, input_tokens.bit_length()), ())
        if len(choices) < ENOUGH:
            choices = self._of_class.get(request_class) or self._every
        longer = [tokens for tokens in choices if tokens > seen]
        tokens = drawn.choice(longer) if longer else seen + 1
        return min(tokens, most) if most > seen else tokens
