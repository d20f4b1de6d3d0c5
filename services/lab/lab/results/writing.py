"""How figures are written: one place, so that tables, sentences and plots agree."""

from collections.abc import Callable

ABSENT = "–"

Written = Callable[[float | None], str]


def whole(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.1%}".replace("%", " %")


def milliseconds(value_s: float | None) -> str:
    """Seconds, written in milliseconds."""
    return ABSENT if value_s is None else f"{value_s * 1000:,.1f}"


def seconds(value: float | None) -> str:
    """Two decimals below 10 s, one below 100 s."""
    if value is None:
        return ABSENT
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def spread(written: Written, low: float | None, high: float | None) -> str:
    """The least and the greatest over the seeds; empty when they read the same, or there are none."""
    if low is None or high is None or written(low) == written(high):
        return ""
    return f"{written(low)}–{written(high)}".replace(" %–", "–")
