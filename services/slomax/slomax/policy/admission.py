"""Admit early or refuse early: judged on the wait, against the slack left after the own prefill. Pure.

Judging the whole predicted TTFT against the objective would refuse nearly every long prompt, whose own
prefill takes much of it; what contention adds is the wait.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenfleet.contracts.requests import Objective, RequestSpec
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView

LEAST_WAIT_S = 0.25
"""A wait this short is never a reason to refuse, however little slack the prompt leaves."""


@dataclass(frozen=True, slots=True)
class Admit:
    predicted_ttft_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    status: int
    reason: str
    message: str
    retry_after_s: float | None = None


Decision = Admit | Refuse


def decide(
    request: RequestSpec,
    objective: Objective,
    instances: Sequence[InstanceView],
    load: LoadView,
    now_s: float,
    *,
    wait_share_of_slack: float,
) -> Decision:
    """Admit or refuse one request.

    Args:
        request: what is known of it.
        objective: what it would be promised.
        instances: the pool's ready instances.
        load: what each is busy with.
        now_s: monotonic engine seconds.
        wait_share_of_slack: refuse when the least wait exceeds this share of `objective.ttft_s` less the own
            prefill on the instance of least wait.
    """
    if not instances:
        return Refuse(503, "no_ready_instance", "No instance of this model is ready.", retry_after_s=1.0)
    fitting = [
        view for view in instances if request.input_tokens + 1 <= view.record.profile.max_context_tokens
    ]
    if not fitting:
        longest = max(view.record.profile.max_context_tokens for view in instances)
        message = f"The prompt has {request.input_tokens} tokens; this model takes at most {longest - 1}."
        return Refuse(400, "context_length_exceeded", message)
    best = min(
        (
            load.predict(
                view.record.instance, view.record.profile, view.state, request.input_tokens, 0, now_s
            )
            for view in fitting
        ),
        key=lambda prediction: prediction.ttft_s,
    )
    if objective.ttft_s is None:
        return Admit(best.ttft_s, "no_ttft_objective")
    wait_s = max(best.backlog_s, best.kv_wait_s)
    allowed_s = max(LEAST_WAIT_S, wait_share_of_slack * (objective.ttft_s - best.own_prefill_s))
    if wait_s > allowed_s:
        return Refuse(
            429,
            "predicted_to_miss_objective",
            f"The fleet is busy: this request would wait {wait_s:.1f} s, and more than {allowed_s:.1f} s "
            "would break its time-to-first-token objective. Try again later.",
            retry_after_s=float(math.ceil(wait_s - allowed_s)),
        )
    return Admit(best.ttft_s, "within_objective")
