"""A batch's `completion_window` is its deadline, counted from its creation."""

import re

UNITS_S = {"m": 60, "h": 3600, "d": 86400}
SHORTEST_S = 60
LONGEST_S = 14 * 86400

_WINDOW = re.compile(r"([1-9][0-9]{0,4})([mhd])", re.ASCII)


def window_s(text: str) -> int:
    """Seconds of a window such as `90m`, `24h` or `7d`.

    Raises:
        ValueError: it is not of that form, or not between one minute and 14 days.
    """
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * UNITS_S[match[2]] if match else 0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise ValueError("a whole number of minutes, hours or days such as 90m, 24h or 7d, from 1m to 14d")
    return seconds
