"""Times and spans of time as people write them."""

import re
from datetime import UTC, datetime

LATEST_S = 9_214_646_400
"""The end of 2261: soon after it 63 bits of ns are full."""
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


def moment_ns(text: str, now_ns: int) -> int:
    """Unix ns of a time in ISO 8601 (UTC unless it says otherwise), or of a duration before `now_ns`.

    Raises:
        ValueError: it is neither, or lies before 1970 or after 2261.
    """
    try:
        unix_s = now_ns / 1e9 - duration_s(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is neither a time such as 2026-05-04T09:00Z nor a duration ago such as 30m or 2h"
            ) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        unix_s = moment.timestamp()
    if not 0 <= unix_s < LATEST_S:
        raise ValueError(f"{text!r} is a time before 1970 or after 2261")
    return round(unix_s * 1e6) * 1_000
