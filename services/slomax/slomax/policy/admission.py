"""Admit early or refuse early: judged on the wait, against the slack left after the own prefill. Pure.

Judging the whole predicted TTFT against the objective would refuse nearly every long prompt, whose own
prefill takes much of it; what contention adds is the wait.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenfleet.contracts.requests import Objective, RequestSpec
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, OutputLengths, outlook, predict

LOOKED_AT = 16
"""Instances, of the shortest backlog, whose KV room is looked at."""
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
    lengths: OutputLengths,
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
        lengths: how long answers are.
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
    best = _soonest(request, fitting, load, lengths, now_s)
    if objective.ttft_s is None:
        return Admit(best.ttft_s, "no_ttft_objective")
    wait_s = best.wait_s
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


@dataclass(frozen=True, slots=True)
class _Soonest:
    ttft_s: float
    wait_s: float
    own_prefill_s: float


def _soonest(
    request: RequestSpec,
    instances: Sequence[InstanceView],
    load: LoadView,
    lengths: OutputLengths,
    now_s: float,
) -> _Soonest:
    """What the request would meet where its first token would come first, were nothing of it cached."""
    slots = load.slots(view.record.instance for view in instances)
    predictions = predict(load.table, slots, request.input_tokens, 0.0, 0.0, now_s)
    nearest = np.argsort(predictions.ttft_s, kind="stable")[:LOOKED_AT]
    kv_wait_s = outlook(load.table, predictions, nearest, lengths.quantiles).kv_wait_s
    wait_s = np.maximum(predictions.backlog_s[nearest], kv_wait_s)
    ttft_s = predictions.ttft_s[nearest] - predictions.backlog_s[nearest] + wait_s
    best = int(np.argmin(ttft_s))
    own_prefill_s = predictions.own_prefill_s[nearest[best]]
    return _Soonest(float(ttft_s[best]), float(wait_s[best]), float(own_prefill_s))
