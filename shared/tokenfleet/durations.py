"""Spans of time as people write them."""

import re

UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_s(text: str) -> float:
    """Seconds of `30s`, `15m`, `1h` or `7d`.

    Raises:
        ValueError: it is not of that form, or zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not match or not float(match[1]):
        raise ValueError(f"{text!r} is not a duration such as 30s, 15m, 1h or 7d")
    return float(match[1]) * UNIT_S[match[2]]
