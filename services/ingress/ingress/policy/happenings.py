"""What can happen to a request, besides the deciders' answers, and what is to be done next."""

from dataclasses import dataclass

from tokenfleet.contracts.requests import Admitted, Ended, Queued, Refused, Routed, Submitted


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment on both clocks that matter to a request."""

    engine_s: float
    unix_ns: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them."""

    input_tokens: int
    output_tokens: int
    reused_tokens: int = 0


# -- what happens


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Ingress itself cannot take the request."""

    status: int
    reason: str
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class DecisionTimedOut:
    """No answer came within the time for a decision, or for a queued request to be heard of again."""


@dataclass(frozen=True, slots=True)
class FellBack:
    """Ingress chose an instance alone; None: it knows of none that is ready."""

    instance: str | None
    pool: str = ""
    site: str = ""


@dataclass(frozen=True, slots=True)
class FirstTokenArrived:
    """The engine's first token is here and is about to be sent to the client."""


@dataclass(frozen=True, slots=True)
class EngineCompleted:
    """The engine's whole answer was relayed."""

    finish_reason: str
    output_tokens: int
    """An estimate, used when there is no `usage`."""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class EngineRejected:
    """The engine answered that the request is at fault (4xx)."""

    status: int


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine could not be reached, broke off, fell silent or answered 5xx."""

    reason: str
    reached: bool = True
    """False when the request was certainly not sent, so that nothing was computed."""
    output_tokens: int = 0
    may_retry: bool = True
    """False when there is no budget for another attempt."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ClientGone:
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class IngressStopping:
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class InternalError:
    output_tokens: int = 0


Answer = Queued | Admitted | Refused | Routed
Interruption = DeadlinePassed | ClientGone | IngressStopping | InternalError
Happening = (
    Answer
    | TurnedAway
    | DecisionTimedOut
    | FellBack
    | FirstTokenArrived
    | EngineCompleted
    | EngineRejected
    | EngineFailed
    | Interruption
)


# -- what to do next


@dataclass(frozen=True, slots=True)
class Ask:
    """Publish this (again), then wait for an answer."""

    submitted: Submitted


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on waiting for what comes next, which is to come within a time that starts anew."""

    for_s: float | None = None
    """Wall seconds; None: the time for a decision."""


@dataclass(frozen=True, slots=True)
class FallBack:
    """No decider answers: choose a ready instance other than these, and report `FellBack`."""

    excluded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallEngine:
    """Send the request to this instance and relay its answer."""

    instance: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The request is over: record `ended`, and answer the client if it still waits for something."""

    ended: Ended
    message: str
    retry_after_s: float | None = None


Step = Ask | Wait | FallBack | CallEngine | Finish
