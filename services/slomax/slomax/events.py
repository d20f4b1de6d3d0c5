"""What SLOMax says on the bus: its verdicts as answers to ingress, and what its feedback changed."""

from slomax.policy.admission import Refuse, Start
from slomax.policy.classify import class_objective
from slomax.policy.entry import Entry
from slomax.policy.feedback import Adjustment
from slomax.policy.outcomes import Evidence, absurd
from slomax.policy.places import Place
from tokenfleet.contracts.control import Adjusted, GoodputWindow
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import Admitted, Placed, Queued, Refused, next_event


def admitted(
    event: Placed,
    entry: Entry,
    start: Start,
    timeout_s: float,
    *,
    site: str,
    time_ns: int,
    waited_s: float,
    kept_free: tuple[str, ...],
) -> Admitted:
    """It runs."""
    return next_event(
        Admitted,
        "admitted",
        event,
        site=site,
        time_ns=time_ns,
        request_class=entry.request_class,
        request=event.request,
        objective=entry.objective,
        reason=start.reason,
        class_reason=entry.class_reason,
        queue_wait_s=waited_s,
        kept_free=kept_free,
        timeout_s=timeout_s,
        predicted_ttft_s=start.predicted_ttft_s,
    )


def refused(event: Placed, entry: Entry, refusal: Refuse, *, site: str, time_ns: int) -> Refused:
    """It does not, and why."""
    return next_event(
        Refused,
        "refused",
        event,
        site=site,
        time_ns=time_ns,
        request_class=entry.request_class,
        status=refusal.status,
        reason=refusal.reason,
        message=refusal.message,
        retry_after_s=refusal.retry_after_s,
        objective=entry.objective,
    )


def queued(
    event: Placed,
    entry: Entry,
    place: Place,
    reason: str,
    timeout_s: float,
    *,
    site: str,
    time_ns: int,
    valid_s: float,
) -> Queued:
    """It waits."""
    return next_event(
        Queued,
        "queued",
        event,
        site=site,
        time_ns=time_ns,
        request_class=entry.request_class,
        reason=reason,
        position=place.position,
        expected_start_s=place.expected_start_s,
        valid_s=valid_s,
        timeout_s=timeout_s,
    )


def timeout_s(entry: Entry, policy: Policy, tenant: Tenant | None) -> float:
    """After how many engine seconds nobody waits for the answer; a batch's line is bounded by its deadline alone."""
    own = class_objective(entry.request_class, policy, tenant).timeout_s or policy.request_timeout_s
    return own if entry.due_s is None else max(own, entry.due_s - entry.arrived_s)


def adjusted(change: Adjustment, pool: str, *, site: str, time_ns: int) -> Adjusted:
    """What feedback changed."""
    seen = change.evidence
    return Adjusted(
        time_ns=time_ns,
        site=site,
        pool=pool,
        request_class=change.request_class,
        knob=change.knob,
        before=change.before,
        after=change.after,
        reason=change.reason,
        offered=seen.offered,
        admitted=seen.ended,
        refused=seen.refused,
        met=seen.met,
    )


def evidence(window: GoodputWindow, unix_ns: int) -> Evidence | str:
    """A goodput window of the ledger as evidence, or why it cannot be believed."""
    names = (
        "offered",
        "completed",
        "rejected",
        "timed_out",
        "cancelled",
        "failed",
        "lost",
        "met",
        "output_tokens",
        "good_tokens",
    )
    counts = {name: float(getattr(window, name)) for name in names}
    problem = absurd(counts, window.window_s, (unix_ns - window.time_ns) / 1e9)
    if problem is not None:
        return problem
    ended = window.completed + window.timed_out + window.failed
    return Evidence(
        offered=window.offered,
        refused=window.rejected,
        ended=ended,
        met=window.met,
        missed_ttft=ended - window.met,
        output_tokens=window.output_tokens,
        good_tokens=window.good_tokens,
    )
