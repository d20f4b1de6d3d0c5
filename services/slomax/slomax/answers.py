"""What SLOMax tells the ingress of a request: admitted, refused, or where it stands in its queue.

A decision is remembered until the request ends: an ingress that asks again gets the same answer.
"""

from dataclasses import dataclass

from slomax import events
from slomax.policy.admission import Refuse, Start
from slomax.policy.entry import Entry
from slomax.policy.places import Place
from tokenfleet import subjects
from tokenfleet.contracts.requests import Admitted, Placed, Refused
from tokenfleet.live import LivePolicy, LiveTenants
from tokenfleet.service import Service
from tokenfleet.settings import Settings

ANNOUNCED_FOR_S = 5.0
"""How long a `queued` answer holds, in wall seconds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A placed request, and what is needed to answer for it."""

    event: Placed
    headers: dict[str, str]
    entry: Entry


class Answers:
    """Publishes answers, counts them and remembers decisions."""

    def __init__(self, service: Service[Settings], policy: LivePolicy, tenants: LiveTenants) -> None:
        self._bus = service.bus
        self._clock = service.clock
        self._site = service.settings.site
        self._policy = policy
        self._tenants = tenants
        self._decided: dict[str, Admitted | Refused] = {}
        meter = service.observability.meter
        self._decisions = meter.create_counter(
            "tokenfleet.slomax.decisions", description="Requests admitted and refused, by class and reason."
        )
        self._waits = meter.create_histogram(
            "tokenfleet.slomax.queue_wait", unit="s", description="Engine seconds until a decision, by class."
        )

    async def decide(self, asked: Asked, verdict: Start | Refuse, kept_free: tuple[str, ...]) -> None:
        """Answer with a decision; `kept_free` are instances where the request should not go though they look free."""
        event, entry = asked.event, asked.entry
        waited_s, time_ns = self._clock.now_s() - entry.arrived_s, self._clock.unix_ns()
        answer: Admitted | Refused
        if isinstance(verdict, Start):
            answer = events.admitted(
                event,
                entry,
                verdict,
                self._timeout_s(asked),
                site=self._site,
                time_ns=time_ns,
                waited_s=waited_s,
                kept_free=kept_free,
            )
        else:
            answer = events.refused(event, entry, verdict, site=self._site, time_ns=time_ns)
        self._decided[event.request_id] = answer
        decision = "admitted" if isinstance(verdict, Start) else "refused"
        attributes = {
            "tokenfleet.class": entry.request_class,
            "tokenfleet.decision": decision,
            "tokenfleet.reason": verdict.reason,
        }
        self._decisions.add(1, attributes)
        self._waits.record(waited_s, {"tokenfleet.class": entry.request_class})
        await self._publish(event, answer, asked.headers)

    async def repeat(self, event: Placed, headers: dict[str, str]) -> bool:
        """Give the answer again that this attempt already had; False if there was none."""
        answer = self._decided.get(event.request_id)
        if answer is None or answer.attempt != event.attempt:
            return False
        await self._publish(event, answer, headers)
        return True

    async def say_queued(self, asked: Asked, place: Place, reason: str) -> None:
        """Say where a request stands, and that it does until the answer is too old."""
        event = asked.event
        answer = events.queued(
            event,
            asked.entry,
            place,
            reason,
            self._timeout_s(asked),
            site=self._site,
            time_ns=self._clock.unix_ns(),
            valid_s=ANNOUNCED_FOR_S,
        )
        subject = subjects.request(self._site, event.pool, "queued", event.request.ingress)
        await self._bus.publish(subject, answer, headers=asked.headers)

    def ended(self, request_id: str) -> None:
        """Nobody will ask again."""
        self._decided.pop(request_id, None)

    def forget_before(self, time_ns: int) -> None:
        """Forget decisions older than this: the ends of those requests were never reported."""
        self._decided = {
            request_id: answer for request_id, answer in self._decided.items() if answer.time_ns > time_ns
        }

    def _timeout_s(self, asked: Asked) -> float:
        tenant = self._tenants.by_name.get(asked.event.tenant)
        return events.timeout_s(asked.entry, self._policy.current, tenant)

    async def _publish(self, event: Placed, answer: Admitted | Refused, headers: dict[str, str]) -> None:
        name = "admitted" if isinstance(answer, Admitted) else "refused"
        subject = subjects.request(self._site, event.pool, name, event.request.ingress)
        await self._bus.publish(subject, answer, headers=headers)
