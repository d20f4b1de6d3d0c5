"""Events that cannot be booked, kept in a JetStream stream of their own with the reason."""

import asyncio
import hashlib
from collections.abc import Sequence

import structlog

from goodput_accountant.metrics import Metrics
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.clock import Clock
from tokenfleet.contracts.dead_letters import DeadLetter, DeadLetterReason
from tokenfleet.errors import UnavailableError

log = structlog.get_logger(__name__)

LARGEST_PAYLOAD_BYTES = 64 << 10
LONGEST_TEXT = 2_000


class DeadLetters:
    """Writes and stores them. The event itself must stay unacknowledged until its letter is stored."""

    def __init__(self, bus: Bus, metrics: Metrics, clock: Clock, site: str) -> None:
        self._bus = bus
        self._metrics = metrics
        self._clock = clock
        self._site = site

    def letter(
        self, subject: str, sequence: int, data: bytes, reason: DeadLetterReason, error: Exception
    ) -> DeadLetter:
        """About an event of the stream of requests."""
        digest = hashlib.sha256(data).hexdigest()
        return DeadLetter(
            # The hash as well: sequences begin anew when a stream is set up anew.
            letter_id=f"{subjects.STREAM_REQUESTS}.{sequence}.{digest[:16]}",
            site=self._site,
            time_ns=self._clock.unix_ns(),
            reason=reason,
            detail=str(error).replace("\0", "\\0")[:LONGEST_TEXT],
            stream=subjects.STREAM_REQUESTS,
            sequence=sequence,
            subject=subject[:LONGEST_TEXT],
            payload_bytes=len(data),
            payload=data[:LARGEST_PAYLOAD_BYTES],
            payload_sha256=digest,
        )

    async def store(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Store letters; returns those that could not be: their events must be looked at again later."""
        stored = await asyncio.gather(*(self._store(letter) for letter in letters))
        return [letter for letter, is_stored in zip(letters, stored, strict=True) if not is_stored]

    async def _store(self, letter: DeadLetter) -> bool:
        said = {
            "subject": letter.subject,
            "stream_sequence": letter.sequence,
            "reason": letter.reason,
            "detail": letter.detail,
        }
        try:
            again = await self._bus.publish_acked(
                subjects.dead_letter(self._site), letter, event_id=letter.letter_id
            )
        except UnavailableError as error:
            log.error("dead letter cannot be stored; its event comes again", error=str(error), **said)
            return False
        if not again:
            self._metrics.dead_letter(letter.reason)
            log.error("event cannot be booked; kept in DEAD_LETTERS", **said)
        return True
