"""Closes requests of which nobody says how they ended, through the stream like any other event.

A sweep looks at submissions older than the bound and keeps those that are not in the ledger, decides on those that
are due, and publishes what it decided. It runs only when the ledger has every event up to now: what is on its way is
not lost. What is said of an end is fixed in Postgres before it is published, and forgotten once it is stored: an
accountant killed in between says the same again, which changes nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing

import msgspec
import structlog

from goodput_accountant.dead_letters import DeadLetters
from goodput_accountant.ledger import Ledger, RefusedError
from goodput_accountant.metrics import Metrics
from goodput_accountant.open_requests import OpenRequests
from goodput_accountant.policy.accounting import account
from goodput_accountant.policy.chain import day_of
from goodput_accountant.policy.lost import NO_OUTCOME, OUTCOME_REFUSED, Submission, decide_ns, lost
from tokenfleet import subjects
from tokenfleet.bus import Bus, Stored, StreamState
from tokenfleet.bus.codec import decode
from tokenfleet.clock import Clock
from tokenfleet.contracts.dead_letters import DeadLetter, DeadLetterReason
from tokenfleet.contracts.requests import EVENT_TYPES, Ended, Event
from tokenfleet.errors import ContractError, UnavailableError

log = structlog.get_logger(__name__)

STREAM = subjects.STREAM_REQUESTS
CHUNK = 2_000
"""Submissions looked at in one transaction."""
FETCH = 250
MOST_CLOSED = 500
"""Requests decided in one transaction, after one pass over their events."""
LARGEST_ATTEMPT = 2**31
CAUGHT_UP_WITHIN_S = 5.0
POLL_S = 0.2
CLOCK_MARGIN_NS = 5 * 10**9
"""By how much the clocks of ingress and of the NATS server may differ."""


class _Of(msgspec.Struct):
    """Whose event it is."""

    request_id: str = ""


class Course(msgspec.Struct):
    """What the stream holds of one request."""

    facts: list[Event] = msgspec.field(default_factory=list)
    ends: list[Stored] = msgspec.field(default_factory=list)


class Sweeper:
    """Several accountants may sweep at once: each takes what no other holds."""

    def __init__(
        self,
        ledger: Ledger,
        bus: Bus,
        dead_letters: DeadLetters,
        metrics: Metrics,
        clock: Clock,
        *,
        durable: str,
        lost_after_s: float,
    ) -> None:
        """
        Args:
            ledger: to look into.
            bus: connected.
            dead_letters: for submissions that say nothing.
            metrics: of this process.
            clock: its time scale is that of the requests.
            durable: the consumer by which the ledger takes in events.
            lost_after_s: wall seconds after its deadline that a request's outcome may still come.
        """
        self._ledger = ledger
        self._bus = bus
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._clock = clock
        self._durable = durable
        self._bound_ns = round(lost_after_s * 1e9)
        self.closed = 0
        """Requests closed as lost by this process."""

    async def sweep(self) -> None:
        """One round; what cannot be done now is left to a later one."""
        try:
            now = await self._bus.stream_state(STREAM)
            if not await self._caught_up(now.last_sequence):
                log.info("ledger is behind its events; requests without an end are looked at later")
                return
            while await self._look_at_submissions(now):
                pass
            while await self._decide(now):
                pass
            while await self._publish():
                pass
        except UnavailableError as error:
            log.warning("requests without an end are looked at later", error=str(error))

    async def _caught_up(self, sequence: int) -> bool:
        until_s = self._clock.wall_s() + CAUGHT_UP_WITHIN_S
        while not await self._bus.has_handled(STREAM, self._durable, sequence):
            if self._clock.wall_s() >= until_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    # -- submissions

    async def _look_at_submissions(self, now: StreamState) -> bool:
        """Keep what is not in the ledger of the next submissions; False when there are none old enough."""
        async with self._ledger.transaction() as connection:
            requests = OpenRequests(connection)
            after = await requests.hold_cursor(STREAM, now.created)
            if after is None:
                return False
            stored = await self._old_enough(after, now.last_sequence)
            if not stored:
                return False
            asked, letters = self._read(stored)
            if await self._dead_letters.store(letters):
                raise UnavailableError("a submission that cannot be read could not be made a dead letter")
            booked = await requests.booked(asked)
            await requests.add(
                [
                    (each, decide_ns(each, (), self._clock.time_scale, self._bound_ns))
                    for each in asked
                    if each.request_id not in booked
                ]
            )
            await requests.move_cursor(STREAM, now.created, stored[-1].sequence)
        return len(stored) == CHUNK

    async def _old_enough(self, after: int, last: int) -> list[Stored]:
        newest_ns = self._clock.unix_ns() - self._bound_ns
        found: list[Stored] = []
        reading = self._bus.read_stored_after(STREAM, [subjects.ALL_SUBMITTED], after, FETCH)
        async with aclosing(reading) as stored_events:
            async for stored in stored_events:
                if stored.time_ns > newest_ns or stored.sequence > last or len(found) == CHUNK:
                    break
                found.append(stored)
        return found

    def _read(self, stored_events: Sequence[Stored]) -> tuple[list[Submission], list[DeadLetter]]:
        asked: list[Submission] = []
        letters: list[DeadLetter] = []
        for stored in stored_events:
            reason: DeadLetterReason = "malformed"
            try:
                one = decode(stored.data, Submission)
                reason = "not_credible"
                self._check(one)
            except ContractError as error:
                letters.append(
                    self._dead_letters.letter(stored.subject, stored.sequence, stored.data, reason, error)
                )
            else:
                asked.append(one)
        return asked, letters

    def _check(self, asked: Submission) -> None:
        """Whether its end could be booked.

        Raises:
            ContractError: it could not.
        """
        if b"\\u0000" in msgspec.json.encode(asked):
            raise ContractError(f"a name of request {asked.request_id} holds a NUL")
        if not 0 < asked.attempt < LARGEST_ATTEMPT:
            raise ContractError(f"attempt of request {asked.request_id} is not credible: {asked.attempt}")
        day_of(account(lost(asked, (), closed_ns=asked.time_ns, time_scale=self._clock.time_scale)))

    # -- decisions

    async def _decide(self, now: StreamState) -> bool:
        """Decide on some of those that are due; False when all are decided."""
        async with self._ledger.transaction() as connection:
            requests = OpenRequests(connection)
            due = await requests.hold_due(self._clock.unix_ns(), MOST_CLOSED)
            booked = await requests.booked(due)
            left = [each for each in due if each.request_id not in booked]
            courses = await self._courses(left) if left else {}
            for asked in left:
                if await self._decide_one(requests, asked, courses[asked.request_id], now.last_sequence):
                    booked.add(asked.request_id)
            await requests.forget(sorted(booked))
        return len(due) == MOST_CLOSED

    async def _decide_one(
        self, requests: OpenRequests, asked: Submission, course: Course, handled: int
    ) -> bool:
        """Close a request, or put it off; True if it needs nothing any more.

        Args:
            requests: the table.
            asked: the request.
            course: its events.
            handled: up to this sequence of the stream the ledger has what it could book.
        """
        now_ns, scale = self._clock.unix_ns(), self._clock.time_scale
        due_ns = decide_ns(asked, course.facts, scale, self._bound_ns)
        if due_ns > now_ns:
            await requests.put_off(asked.request_id, due_ns)
            return False
        if any(end.sequence > handled for end in course.ends):
            await requests.put_off(asked.request_id, now_ns + self._bound_ns)  # its end is on its way
            return False
        if course.ends and await self._booked_after_all(course.ends):
            return True
        reason = OUTCOME_REFUSED if course.ends else NO_OUTCOME
        await requests.close(lost(asked, course.facts, closed_ns=now_ns, time_scale=scale, reason=reason))
        return False

    async def _booked_after_all(self, ends: Sequence[Stored]) -> bool:
        """Book an end that the ledger had and has not any more (a database restored from an older copy)."""
        for end in ends:
            try:
                row = account(decode(end.data, Ended))
                day_of(row)
                await self._ledger.append([row])
            except (ContractError, RefusedError):
                continue  # a dead letter
            log.warning("row was missing in the ledger", request_id=row.request_id)
            return True
        return False

    async def _courses(self, asked: Sequence[Submission]) -> dict[str, Course]:
        """The events of some requests, in one pass over the stream."""
        courses: dict[str, Course] = defaultdict(Course)
        wanted = {each.request_id for each in asked}
        from_ns = max(0, min(each.time_ns for each in asked) - CLOCK_MARGIN_NS)
        reading = self._bus.read_stored(STREAM, [subjects.ALL_REQUESTS], from_ns)
        async with aclosing(reading) as stored_events:
            async for stored in stored_events:
                request_id = _request_id(stored)
                if request_id in wanted:
                    _take(stored, courses[request_id])
        return courses

    # -- publishing

    async def _publish(self) -> bool:
        """Publish some of what was decided; False when all is published."""
        async with self._ledger.transaction() as connection:
            requests = OpenRequests(connection)
            closed = await requests.hold_closed(MOST_CLOSED)
            said = await asyncio.gather(*map(self._say, closed))
            await requests.forget([ended.request_id for ended in closed])
        self.closed += sum(said)
        self._metrics.closed_as_lost(sum(said))
        return len(closed) == MOST_CLOSED

    async def _say(self, ended: Ended) -> bool:
        """Publish an end; False if that had been done before."""
        subject = subjects.request(ended.site, ended.pool, ended.outcome)
        again = await self._bus.publish_acked(subject, ended, ended.event_id)
        if not again:
            log.warning(
                "request closed as lost",
                request_id=ended.request_id,
                reason=ended.reason,
                instance=ended.instance,
            )
        return not again


def _request_id(stored: Stored) -> str:
    try:
        return decode(stored.data, _Of).request_id
    except ContractError:
        return ""


def _take(stored: Stored, course: Course) -> None:
    kind = EVENT_TYPES.get(stored.subject.split(".")[5])
    if kind is Ended:
        course.ends.append(stored)
    elif kind is not None:
        try:
            course.facts.append(decode(stored.data, kind))
        except ContractError:
            return  # of another version; the others still tell what became of it
