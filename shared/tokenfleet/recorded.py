"""A request's events as they are read back from where they were recorded. Pure."""

from dataclasses import dataclass

from tokenfleet.contracts.requests import Event


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event as the stream holds it."""

    kind: str
    event: Event
    time_ns: int = 0
    """When the stream took it."""
