"""The bytes a run's JSON is kept as: small enough to commit, exact enough to report from."""

from typing import Any

import msgspec

FIGURE_DIGITS, SERIES_DIGITS = 6, 4
SERIES_POINTS = 48
"""Points kept of each line in `series`; a plot a page's half wide shows no more."""


def encode(run: dict[str, Any]) -> bytes:
    """A run's JSON, one policy per line, figures to six significant digits and series thinned.

    The order of keys stays, and equal runs give equal bytes.
    """
    policies = run.get("policies", {})
    rest = {key: _short(value) for key, value in run.items() if key != "policies"}
    lines = (
        b'"' + name.encode() + b'":' + msgspec.json.encode(_short(result))
        for name, result in policies.items()
    )
    head = msgspec.json.encode(rest)[:-1]
    return head + b',\n"policies":{\n' + b",\n".join(lines) + b"\n}}\n"


def _short(value: Any, digits: int = FIGURE_DIGITS) -> Any:
    if isinstance(value, float):
        return _rounded(value, digits)
    if isinstance(value, dict):
        return {
            key: _thinned(inner) if key == "series" else _short(inner, digits) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_short(inner, digits) for inner in value]
    return value


def _thinned(series: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _short(_every(line) if _drawn(name, line) else line, SERIES_DIGITS)
        for name, line in series.items()
    }


def _drawn(name: str, line: Any) -> bool:
    """Whether it is a line of a plot: of what a policy changed, every entry is kept."""
    return name != "adjustments" and isinstance(line, list | tuple)


def _every(line: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Evenly spaced points, the first and the last among them."""
    if len(line) <= SERIES_POINTS:
        return list(line)
    step = (len(line) - 1) / (SERIES_POINTS - 1)
    return [line[round(i * step)] for i in range(SERIES_POINTS)]


def _rounded(value: float, digits: int) -> float | int:
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded
