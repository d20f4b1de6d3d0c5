"""One request on its way through a simulation."""

import msgspec

from lab.sim.api import Arrival, Outcome, Route
from lab.sim.cluster import Instance
from lab.sim.workload import Submission


class Job:
    """One request on its way."""

    __slots__ = (
        "arrival",
        "attempt",
        "excluded",
        "first_token_s",
        "held",
        "instance",
        "output_tokens",
        "over",
        "retried_input_tokens",
        "reused_tokens",
        "route",
        "routed_s",
        "submission",
    )

    def __init__(self, submission: Submission, arrived: Arrival) -> None:
        self.submission = submission
        self.arrival = arrived
        self.attempt = 1
        self.excluded: tuple[str, ...] = arrived.spec.excluded_instances
        self.instance: Instance | None = None
        self.first_token_s: float | None = None
        """When its client saw it."""
        self.output_tokens = 0
        self.reused_tokens = 0
        self.route: Route | None = None
        """What was decided last, and when."""
        self.routed_s = 0.0
        self.retried_input_tokens = 0
        self.held = False
        self.over = False

    def outcome(self, outcome: str, reason: str, status: int, ended_s: float) -> Outcome:
        """What became of it. Its blocks are dropped: a timer may keep the job for long."""
        self.over = True
        self.arrival = self.arrival._replace(blocks=())
        first_s, instance, tpot_s = self.first_token_s, self.instance, None
        route = self.route or Route("")
        waited_s = self.routed_s - self.submission.arrival_s
        if first_s is not None and self.output_tokens > 1:
            tpot_s = (ended_s - first_s) / (self.output_tokens - 1)
        return Outcome(
            arrival=self.arrival,
            outcome=outcome,
            reason=reason,
            status=status,
            ended_s=ended_s,
            instance=instance.spec.name if instance else None,
            site=instance.spec.site if instance else None,
            ttft_s=None if first_s is None else first_s - self.submission.arrival_s,
            tpot_s=tpot_s,
            output_tokens=self.output_tokens,
            reused_tokens=self.reused_tokens,
            predicted_ttft_s=_after(waited_s, route.predicted_ttft_s),
            predicted_ttft_p90_s=_after(waited_s, route.predicted_ttft_p90_s),
            predicted_tpot_s=route.predicted_tpot_s,
            predicted_tpot_p90_s=route.predicted_tpot_p90_s,
            attempt=self.attempt,
            retried_input_tokens=self.retried_input_tokens,
        )

    def try_again(self, failed: str) -> None:
        """Its attempt at this instance failed before a token was sent; it goes back to the router."""
        self.attempt += 1
        self.instance = None
        self.output_tokens = 0
        self.retried_input_tokens += self.submission.request.input_tokens
        self.excluded = (*self.excluded, failed)
        spec = msgspec.structs.replace(self.arrival.spec, excluded_instances=self.excluded)
        self.arrival = self.arrival._replace(spec=spec)


def _after(waited_s: float, seconds: float | None) -> float | None:
    return None if seconds is None else waited_s + seconds
