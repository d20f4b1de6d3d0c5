"""Names that stand for a generated trace where a path could be: `generated:agent?requests=1000&seed=3`.

    generated[:KIND[=WEIGHT],...][?OPTION=VALUE&...]

Without a kind it is `chat`. Options: requests, seed, rate (requests per second) and tenants.
"""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl

import msgspec

from lab.errors import TraceError
from lab.traces.generator import CHAT_ONLY, DEFAULT_TENANTS, generate
from lab.traces.kinds import KINDS
from lab.traces.model import Trace

GENERATED = "generated"
"""The name, or the beginning of it, that stands for the built-in generator instead of a path."""

SYNTAX = f"{GENERATED}:{'|'.join(KINDS)}[=WEIGHT],...?requests=N&seed=N&rate=PER_S&tenants=N"
DEFAULT_REQUESTS = 12_000


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests: int = DEFAULT_REQUESTS
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    rate: float | None = None
    tenants: int = DEFAULT_TENANTS


def is_generated(name: str) -> bool:
    """Whether this name asks for the generator."""
    return name == GENERATED or name.startswith((f"{GENERATED}:", f"{GENERATED}?"))


def generate_named(name: str, requests: int | None, seed: int) -> Trace:
    """The trace that a name describes. What the name leaves open is `requests` (if given) and `seed`.

    Raises:
        TraceError: the name is not of that form, or asks for what the generator cannot make.
    """
    head, _, query = name.partition("?")
    _, _, kinds = head.partition(":")
    mix = _mix(name, kinds) if kinds else CHAT_ONLY
    given: dict[str, str | int] = {"seed": seed}
    if requests is not None:
        given["requests"] = requests
    try:
        given.update(parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else ())
        options = msgspec.convert(given, _Options, strict=False)
    except ValueError as error:
        raise TraceError(name, f"{error}. The form is {SYNTAX}") from error
    return generate(
        options.requests, options.seed, mix, rate_per_s=options.rate, tenants=options.tenants
    ).head(requests)


def _mix(name: str, kinds: str) -> Mapping[str, float]:
    mix: dict[str, float] = {}
    for part in kinds.split(","):
        kind, _, weight = part.partition("=")
        if kind in mix:
            raise TraceError(name, f"{kind} is named twice")
        try:
            mix[kind] = float(weight or 1)
        except ValueError as error:
            raise TraceError(name, f"{weight!r} is not a weight. The form is {SYNTAX}") from error
    return mix
