"""A request that SLOMax has to decide on, and what time it has left. Pure."""

from dataclasses import dataclass

from tokenfleet.contracts.policy import WhenLate
from tokenfleet.contracts.requests import Objective, RequestSpec

LEAST_SLACK_S = 0.1


@dataclass(slots=True)
class Entry:
    """One request. Times are monotonic engine seconds."""

    request_id: str
    attempt: int
    tenant: str
    weight: float
    """Of its tenant."""
    request_class: str
    class_reason: str
    request: RequestSpec
    objective: Objective
    when_late: WhenLate
    arrived_s: float
    """When its client sent it."""
    expires_s: float
    """When it must have left the queue."""
    due_s: float | None = None
    """By when its batch is to be done."""
    own_prefill_s: float = 0.0
    """On the instance where its first token would have come first when it arrived, with nothing cached."""
    promised_s: float | None = None
    """The first token's time limit that its promises amount to, counted from its arrival; None: there is none."""
    floods: bool = False
    """Whether its tenant takes far more than its share while others wait, as of the last look at it."""
    given_up: bool = False
    """Whether its promise cannot be kept and it is served nevertheless."""
    degraded_from: str | None = None
    """The class whose objective it could not meet."""

    @property
    def tokens(self) -> int:
        return self.request.input_tokens

    @property
    def patient(self) -> bool:
        """Whether nobody waits for its first token: work with a distant deadline, or none."""
        return self.objective.ttft_s is None

    @property
    def slack_s(self) -> float:
        """What it may wait in all; infinite where nothing was promised."""
        if self.promised_s is None:
            return float("inf")
        return max(self.promised_s - self.own_prefill_s, LEAST_SLACK_S)

    @property
    def latest_start_s(self) -> float:
        """When it must begin to keep its promise."""
        return self.arrived_s + self.slack_s
