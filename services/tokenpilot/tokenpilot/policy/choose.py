"""Which instance: least expected cost among those that can take the request. Pure and deterministic."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenfleet.contracts.fleet import IndexQuality
from tokenfleet.contracts.policy import Routing
from tokenfleet.contracts.requests import Candidate, Objective, RequestSpec
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, OutputLengths, predict
from tokenfleet.load.table import Floats
from tokenpilot.policy.candidates import Scores, candidates
from tokenpilot.policy.cost import work_out
from tokenpilot.policy.demand import Demand
from tokenpilot.policy.roster import Roster

TIE_S = 0.001
"""Costs closer than this are equal; the draw decides, so that ties do not herd."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The instance chosen, and every candidate as it looked."""

    instance: InstanceView
    reused_tokens: int
    predicted_ttft_s: float
    predicted_tpot_s: float
    own_prefill_s: float
    queued: bool
    """Whether it will wait there for others."""
    waits_for_kv: bool
    reason: str
    candidates: tuple[Candidate, ...]
    considered: int
    filtered: Mapping[str, int]


@dataclass(slots=True)
class Situation:
    """What a choice is made from.

    Args:
        request: what is known of it.
        roster: the pool's ready instances, in a stable order.
        matched_blocks: leading prompt blocks each instance holds.
        load: what each is busy with.
        lengths: how long answers are.
        demand: what arrives, and how old the caches' oldest blocks are.
        now_s: monotonic engine seconds.
        objective: what the request was promised.
        offloaded_blocks: of the matched, those to be restored from host memory or disk.
        kept_free: instances that others are to have, used only where there is no other.
        turn: how many requests of the pool were routed before (round robin).
        draw: uniform in [0, 1), breaks ties.
        quality: how far to trust what is known of an instance's cache.
        wall_s: the fleet view's clock, to tell how old telemetry is.
    """

    request: RequestSpec
    roster: Roster
    matched_blocks: Mapping[str, int]
    load: LoadView
    lengths: OutputLengths
    demand: Demand
    now_s: float
    objective: Objective | None = None
    offloaded_blocks: Mapping[str, int] = field(default_factory=dict[str, int])
    kept_free: Sequence[str] = ()
    turn: int = 0
    draw: float = 0.0
    quality: Callable[[str], IndexQuality | None] = lambda _: None
    wall_s: float | None = None


def why_not(view: InstanceView, request: RequestSpec) -> str | None:
    """Why an instance cannot take a request at all, or None."""
    record = view.record
    if record.instance in request.excluded_instances:
        return "failed_this_request_before"
    if request.adapter is not None and request.adapter not in record.adapters:
        return "adapter_missing"
    if request.input_tokens + 1 > record.profile.max_context_tokens:
        return "context_too_long"
    if request.input_tokens + 1 > record.profile.kv_capacity_tokens:
        return "exceeds_kv_capacity"
    return None


def choose(situation: Situation, *, routing: Routing = "predicted") -> Choice | None:
    """The instance for a request, or None when none can take it.

    Args:
        situation: all that is known.
        routing: `predicted` takes the least expected cost; `least_requests` and `round_robin` are what fleets
            commonly run today, kept for comparison.
    """
    roster, filtered = _usable(situation)
    if not roster.instances:
        return None
    scores = _score(situation, roster)
    picked, reason = _PICKERS[routing](situation, scores)
    costs, predictions = scores.costs, scores.predictions
    return Choice(
        instance=roster.instances[picked],
        reused_tokens=int(scores.reused_tokens[picked]),
        predicted_ttft_s=float(costs.ttft_s[picked]),
        predicted_tpot_s=float(predictions.tpot_s[picked]),
        own_prefill_s=float(predictions.own_prefill_s[picked]),
        queued=bool(predictions.backlog_s[picked] > 0),
        waits_for_kv=bool(costs.kv_wait_s[picked] > predictions.backlog_s[picked]),
        reason=reason,
        candidates=candidates(scores, picked, filtered, situation.quality, situation.wall_s),
        considered=len(situation.roster.instances),
        filtered=Counter(filtered.values()),
    )


def _usable(situation: Situation) -> tuple[Roster, Mapping[str, str]]:
    """The instances that can take the request, and why each of the others cannot."""
    request, roster = situation.request, situation.roster
    usable = request.input_tokens <= roster.max_prompt_tokens
    if request.adapter is not None:
        usable &= np.array([request.adapter in view.record.adapters for view in roster.instances])
    for name in request.excluded_instances:
        position = roster.position.get(name)
        if position is not None:
            usable[position] = False
    kept_free = usable.copy()
    for name in situation.kept_free:
        position = roster.position.get(name)
        if position is not None:
            kept_free[position] = False
    if kept_free.any():
        usable = kept_free
    if usable.all():
        return roster, {}
    reasons = {
        view.record.instance: why_not(view, request) or "kept_free" for view in roster.of(~usable).instances
    }
    return roster.of(usable), reasons


def _score(situation: Situation, roster: Roster) -> Scores:
    input_tokens, load = situation.request.input_tokens, situation.load
    reused = _tokens(roster, situation.matched_blocks, input_tokens)
    offloaded = _tokens(roster, situation.offloaded_blocks, input_tokens)
    predictions = predict(load.table, roster.slots, input_tokens, reused, offloaded, situation.now_s)
    costs = work_out(
        roster.names,
        predictions,
        reused,
        situation.objective,
        load,
        situation.lengths,
        situation.demand,
    )
    return Scores(roster, predictions, reused, offloaded, costs)


def _tokens(roster: Roster, blocks: Mapping[str, int], input_tokens: int) -> Floats:
    """Tokens of so many leading blocks at each instance."""
    depth = np.zeros(len(roster.names))
    here = [name for name in blocks if name in roster.position]
    depth[[roster.position[name] for name in here]] = [blocks[name] for name in here]
    # The last token is always computed: its output is the next token.
    return np.minimum(depth * roster.block_size_tokens, max(0, input_tokens - 1))


def _draw_among(best: Sequence[int], draw: float) -> int:
    return int(best[min(int(draw * len(best)), len(best) - 1)])


def _least_cost(situation: Situation, scores: Scores) -> tuple[int, str]:
    costs = np.where(np.isnan(scores.costs.cost_s), np.inf, scores.costs.cost_s)
    best = np.flatnonzero(costs <= costs.min() + TIE_S)
    picked = _draw_among(best.tolist(), situation.draw)
    if len(best) > 1:
        return picked, "tie_drawn"
    nearest = int(np.argmin(scores.costs.ttft_s))
    return picked, "least_cost" if picked == nearest else "spares_others"


def _least_requests(situation: Situation, scores: Scores) -> tuple[int, str]:
    outstanding = [situation.load.outstanding(name) for name in scores.roster.names]
    least = min(outstanding)
    best = [position for position, count in enumerate(outstanding) if count == least]
    return _draw_among(best, situation.draw), "least_requests"


def _round_robin(situation: Situation, scores: Scores) -> tuple[int, str]:
    return situation.turn % len(scores.roster.instances), "round_robin"


_Picker = Callable[[Situation, Scores], tuple[int, str]]
_PICKERS: dict[Routing, _Picker] = {
    "predicted": _least_cost,
    "least_requests": _least_requests,
    "round_robin": _round_robin,
}
