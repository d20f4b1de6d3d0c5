"""What waits at SLOMax and where its feedback stands, as its /health says."""

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from tokenfleet.errors import UnavailableError

TENANTS_SHOWN = 5


class WaitingClass(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of one class of a pool; times are engine seconds."""

    requests: int = 0
    input_tokens: int = 0
    oldest_wait_s: float = 0.0
    expected_start_s: float | None = None
    """When one that arrives now could begin; None: not known."""
    tenants: dict[str, int] = {}
    """Requests of each."""


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """What `tokenfleet queue` reads of SLOMax's /health."""

    queues: dict[str, dict[str, WaitingClass]] = {}
    """By pool and class."""
    control: dict[str, dict[str, Any]] = {}
    """By pool: the knobs that feedback moves, as they stand."""


def read_queues(health: dict[str, Any], pool: str | None = None) -> Queues:
    """The queues that SLOMax's /health tells of: of one pool, or of all.

    Raises:
        UnavailableError: SLOMax says nothing of that pool, or something that cannot be read.
    """
    try:
        read = msgspec.convert(health, Queues)
    except msgspec.ValidationError as error:
        raise UnavailableError(
            f"SLOMax's /health cannot be read: {error}. Is it of another version?"
        ) from error
    if pool is None:
        return read
    known = read.queues.keys() | read.control.keys()
    if pool not in known:
        names = ", ".join(sorted(known)) or "none"
        raise UnavailableError(f"SLOMax decides for no pool named {pool}. It decides for: {names}.")
    return Queues(
        queues={pool: read.queues.get(pool, {})},
        control={pool: read.control.get(pool, {})},
    )


def render(read: Queues) -> RenderableType:
    """A table of what waits, and a line for each pool with its margins."""
    if not read.queues and not read.control:
        return "SLOMax decides for no pool yet."
    table = Table("pool", "class", "requests", "input tokens", "oldest wait", "a new one starts", "tenants")
    for pool, classes in sorted(read.queues.items()):
        for name, waiting in sorted(classes.items()):
            table.add_row(pool, name, *_row(waiting))
    margins = [
        f"{pool}: " + ", ".join(f"{knob} {_short(value)}" for knob, value in sorted(knobs.items()))
        for pool, knobs in sorted(read.control.items())
        if knobs
    ]
    return Group(table if table.row_count else "Nothing waits.", *margins)


def _row(waiting: WaitingClass) -> tuple[str, ...]:
    if not waiting.requests:
        return "0", "0", "-", "-", ""
    most = sorted(waiting.tenants.items(), key=lambda each: (-each[1], each[0]))
    names = [f"{tenant} {count}" for tenant, count in most[:TENANTS_SHOWN]]
    if len(most) > TENANTS_SHOWN:
        names.append(f"{len(most) - TENANTS_SHOWN} more")
    start_s = waiting.expected_start_s
    return (
        f"{waiting.requests:,}",
        f"{waiting.input_tokens:,}",
        f"{waiting.oldest_wait_s:.1f} s",
        "unknown" if start_s is None else f"in {start_s:.1f} s",
        ", ".join(names),
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
