"""What a window was worth: as it was recorded, and as it came out in a run. Both by the ledger's own rules.

Every column is judged by the promises of the live policy, so that one yardstick measures all: a policy does not look
better because it promises less.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.report import build_report
from lab.sim.api import Outcome
from lab.sim.figures import ended
from lab.whatif.fleet import Fleet, RunClock
from lab.whatif.recording import Recording
from lab.whatif.traffic import Prepared
from slomax.policy.classify import BATCH, objective_for
from tokenfleet.contracts.policy import Policy
from tokenfleet.contracts.requests import Ended

CLIENT_CLOSED_REQUEST = 499


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One column. Times in engine seconds; None where no request has the figure."""

    offered: int
    completed: float
    refused: float
    timed_out: float
    cancelled: float
    failed: float
    goodput_tokens_per_s: float
    output_tokens_per_s: float
    attainment_offered: float | None
    attainment_admitted: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p95_s: float | None
    prefix_reuse: float | None
    class_attainment: dict[str, float | None]
    """Of offered."""


def recorded_rows(recording: Recording) -> list[LedgerRow]:
    """The ledger's rows of the window's requests, of those whose beginning and end are both recorded."""
    ends = [one.ended for one in recording.counted if one.ended is not None]
    return [account(one) for one in (*ends, *recording.turned_away)]


def simulated_rows(
    outcomes: Sequence[Outcome],
    requests: Sequence[Prepared],
    recording: Recording,
    fleet: Fleet,
    degraded: frozenset[str] | set[str],
) -> list[LedgerRow]:
    """The rows that the same requests have in a run.

    Args:
        outcomes: of all that was submitted.
        requests: what each was made from.
        recording: for what no policy decides on.
        fleet: the live policy and the run's clock.
        degraded: of the run's requests, those that were moved to the batch class.
    """
    rows = [
        account(_ended(outcome, one, fleet.policy, outcome.arrival.request_id in degraded))
        for outcome, one in zip(outcomes, requests, strict=True)
        if one.recorded.counted and one.recorded.ended is not None
    ]
    return rows + [account(_on_clock(one, fleet.clock)) for one in recording.turned_away]


def figures_of(rows: Sequence[LedgerRow]) -> Figures:
    """The rows added up as the ledger's report does."""
    report = build_report(rows)
    total = report.total
    return Figures(
        offered=total.offered,
        completed=total.completed,
        refused=total.rejected,
        timed_out=total.timed_out,
        cancelled=total.cancelled,
        failed=total.failed,
        goodput_tokens_per_s=total.goodput_tokens_per_s,
        output_tokens_per_s=total.output_tokens_per_s,
        attainment_offered=total.attainment_offered,
        attainment_admitted=total.attainment_admitted,
        ttft_p50_s=total.ttft_s.p50,
        ttft_p95_s=total.ttft_s.p95,
        tpot_p95_s=total.tpot_s.p95,
        prefix_reuse=total.prefix_reuse,
        class_attainment={name: summary.attainment_offered for name, summary in report.classes.items()},
    )


def flat(figures: Figures) -> Mapping[str, float | None]:
    """Every figure by name, those of classes as `class.NAME`."""
    fields = msgspec.structs.asdict(figures)
    classes = fields.pop("class_attainment")
    return {**fields, **{f"class.{name}": value for name, value in classes.items()}}


def _ended(outcome: Outcome, one: Prepared, live: Policy, degraded: bool) -> Ended:
    spec = outcome.arrival.spec
    base = ended(outcome, live)
    request_class = BATCH if degraded else one.request_class
    changes: dict[str, Any] = {
        # The client's time counts from when it asked.
        "submitted_ns": round(one.arrival_s * 1e9),
        "e2e_s": max(0.0, outcome.ended_s - one.arrival_s),
        "ttft_s": None if base.ttft_s is None else base.ttft_s + outcome.arrival.time_s - one.arrival_s,
        "request_class": request_class,
        "objective": objective_for(request_class, spec, live, one.tenant),
        "pool": one.recorded.ended.pool if one.recorded.ended else base.pool,
    }
    if not spec.stream:
        changes |= {"ttft_s": None, "tpot_s": None}
    if outcome.outcome == "timed_out" and one.left_after_s is not None:
        changes |= {
            "outcome": "cancelled",
            "reason": "client_disconnected",
            "status": CLIENT_CLOSED_REQUEST,
        }
    return msgspec.structs.replace(base, **changes)


def _on_clock(one: Ended, clock: RunClock) -> Ended:
    """The same end in seconds of the run."""
    return msgspec.structs.replace(
        one,
        submitted_ns=round(clock.at_s(one.submitted_ns) * 1e9),
        time_ns=round(clock.at_s(one.time_ns) * 1e9),
        time_scale=1.0,
    )
