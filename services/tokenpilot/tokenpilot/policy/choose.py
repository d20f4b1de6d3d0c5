"""Which instance: least expected cost among those that can take the request. Pure and deterministic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tokenfleet.contracts.policy import Routing
from tokenfleet.contracts.requests import Candidate, RequestSpec
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView

TIE_S = 0.001
"""Costs closer than this are equal; the draw decides, so that ties do not herd."""
MAX_CANDIDATES = 64
"""Candidates kept in the event for `explain`, best first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The instance chosen, and every candidate as it looked."""

    instance: InstanceView
    reused_tokens: int
    predicted_ttft_s: float
    predicted_tpot_s: float
    reason: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class _Scored:
    view: InstanceView
    candidate: Candidate
    predicted_tpot_s: float


def why_not(view: InstanceView, request: RequestSpec) -> str | None:
    """Why an instance cannot take a request at all, or None."""
    record = view.record
    if record.instance in request.excluded_instances:
        return "failed_this_request_before"
    if request.input_tokens + 1 > record.profile.max_context_tokens:
        return "context_too_long"
    if request.input_tokens + 1 > record.profile.kv_capacity_tokens:
        return "exceeds_kv_capacity"
    return None


def choose(
    request: RequestSpec,
    instances: Sequence[InstanceView],
    matched_blocks: Mapping[str, int],
    load: LoadView,
    now_s: float,
    *,
    routing: Routing = "predicted",
    turn: int = 0,
    draw: float = 0.0,
) -> Choice | None:
    """The instance for a request, or None when none can take it.

    Args:
        request: what is known of it.
        instances: the pool's ready instances, in a stable order.
        matched_blocks: leading prompt blocks each instance holds.
        load: what each is busy with.
        now_s: monotonic engine seconds.
        routing: `predicted` takes the lowest predicted TTFT; `least_requests` and `round_robin` are what
            fleets commonly run today, kept for comparison.
        turn: how many requests of the pool were routed before (round robin).
        draw: uniform in [0, 1), breaks ties.
    """
    scored: list[_Scored] = []
    filtered: list[Candidate] = []
    for view in instances:
        reason = why_not(view, request)
        if reason:
            filtered.append(Candidate(instance=view.record.instance, filtered=reason))
        else:
            scored.append(_score(request, view, matched_blocks, load, now_s))
    if not scored:
        return None
    pick, reason = _PICKERS[routing](scored, load, turn, draw)
    ranked = sorted(scored, key=lambda entry: entry.candidate.cost_s or 0.0)
    candidates = [entry.candidate for entry in ranked] + filtered
    return Choice(
        instance=pick.view,
        reused_tokens=pick.candidate.reused_tokens,
        predicted_ttft_s=pick.candidate.predicted_ttft_s or 0.0,
        predicted_tpot_s=pick.predicted_tpot_s,
        reason=reason,
        candidates=tuple(candidates[:MAX_CANDIDATES]),
    )


def _score(
    request: RequestSpec,
    view: InstanceView,
    matched_blocks: Mapping[str, int],
    load: LoadView,
    now_s: float,
) -> _Scored:
    record, state = view.record, view.state
    reused = matched_blocks.get(record.instance, 0) * record.block_size_tokens
    prediction = load.predict(record.instance, record.profile, state, request.input_tokens, reused, now_s)
    candidate = Candidate(
        instance=record.instance,
        cost_s=prediction.ttft_s,
        predicted_ttft_s=prediction.ttft_s,
        backlog_s=prediction.backlog_s,
        reused_tokens=min(reused, request.input_tokens),
        running=state.running if state and state.running is not None else 0,
        waiting=state.waiting if state and state.waiting is not None else 0,
    )
    return _Scored(view, candidate, prediction.tpot_s)


def _draw_among(best: Sequence[_Scored], draw: float) -> _Scored:
    return best[min(int(draw * len(best)), len(best) - 1)]


def _lowest_predicted(
    scored: Sequence[_Scored], load: LoadView, turn: int, draw: float
) -> tuple[_Scored, str]:
    least = min(entry.candidate.cost_s or 0.0 for entry in scored)
    best = [entry for entry in scored if (entry.candidate.cost_s or 0.0) <= least + TIE_S]
    return _draw_among(best, draw), "lowest_predicted_ttft" if len(best) == 1 else "tie_drawn"


def _least_requests(scored: Sequence[_Scored], load: LoadView, turn: int, draw: float) -> tuple[_Scored, str]:
    least = min(load.outstanding(entry.view.record.instance) for entry in scored)
    best = [entry for entry in scored if load.outstanding(entry.view.record.instance) == least]
    return _draw_among(best, draw), "least_requests"


def _round_robin(scored: Sequence[_Scored], load: LoadView, turn: int, draw: float) -> tuple[_Scored, str]:
    return scored[turn % len(scored)], "round_robin"


_Picker = Callable[[Sequence[_Scored], LoadView, int, float], tuple[_Scored, str]]
_PICKERS: dict[Routing, _Picker] = {
    "predicted": _lowest_predicted,
    "least_requests": _least_requests,
    "round_robin": _round_robin,
}
