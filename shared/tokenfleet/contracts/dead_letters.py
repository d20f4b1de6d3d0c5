"""Events that the ledger cannot book, kept with the reason."""

from typing import Literal

import msgspec

DeadLetterReason = Literal["malformed", "not_credible", "refused_by_ledger"]
"""Not what its subject promises; figures that no rule accepts; figures that Postgres does not take."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One event that was refused. Stored once for each event, however often that was delivered."""

    letter_id: str
    """Made of where the event is and what it is: the same event has the same."""
    site: str
    time_ns: int
    """When it was refused."""
    reason: DeadLetterReason
    detail: str
    """What exactly is wrong with it."""
    stream: str
    """Where the event was stored, with its sequence there."""
    sequence: int
    subject: str
    payload_bytes: int
    payload: bytes
    """The event's first 64 KiB (Base64 in JSON)."""
    payload_sha256: str
    """Of the whole event, in hexadecimal."""
