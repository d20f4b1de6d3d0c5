"""Requests by the length of their prompts: averages over all lengths hide what happens to the long ones."""

LENGTHS = {"4k": 4_000, "16k": 16_000, "64k": 64_000, "longer": None}
"""Input-length classes by their greatest length in tokens."""


def length_class(input_tokens: int) -> str:
    """The class of a prompt."""
    return next(name for name, most in LENGTHS.items() if most is None or input_tokens <= most)
