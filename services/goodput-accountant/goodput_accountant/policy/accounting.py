"""One request's terminal fact turned into one ledger row.

Definitions (engine seconds; `n` output tokens; `L_ttft`, `L_tpot`, `L_e2e` the terms of its objective):

- good         completed, and every declared term that can be measured was met.
- TTFT term    `ttft <= L_ttft`, where a first token was seen.
- TPOT term    `tpot <= L_tpot`, where a mean was measured. An answer of one token has none, and none is
               invented: the term is not judged.
- e2e term     `e2e <= L_e2e`.
- no first token seen (an answer that was not streamed, or an empty one): the client saw nothing before the
               end, and a streamed answer that just keeps its promise ends `L_ttft + L_tpot * (n - 1)` after
               it was submitted. So the end is judged by that limit and a miss is booked on the e2e term. With
               more than one token and no TPOT promised there is no such limit: nothing is judged.
- met          True: good. False: rejected, timed out, failed or lost with a promise made, or completed with a term
               missed. None: nothing was promised, or nothing of the promise could be judged.
- lost         nobody said how it ended: a miss where a promise was made, its tokens unknown (none are booked as
               output). Its e2e is when it was closed, which says nothing of any term: only a first token that was
               seen is judged. A true outcome that arrives later is a correction: revision 1 replaces revision 0.
- cancelled    neutral (None), unless the promise was already broken when the client left (a measured term
               over its limit, or a stream still silent after `L_ttft`): then a miss. Else a slow fleet would
               look better for every client that gave up.
- computed     `input - reused`: prompt tokens the engine had to prefill, once the request was at an instance.
               For a request that ended before its first token this is an upper bound; of a lost one without a
               first token nobody knows whether an engine ever had it: 0.
- waste        computed prompt tokens and output tokens of a request that timed out, was cancelled or failed
               (cause: its outcome), was lost or completed late (cause: late); and those of abandoned
               attempts (cause: retried), whatever came of the last one.
- GPU-seconds  `prefill_gpu_s + decode_gpu_s` of the last attempt, `retried_gpu_s` of the others, as estimated where the
               engine is known (`tokenfleet.engine.gpu_time`); wasted: those of the tokens that are waste.
- output       of the last attempt `= good + wasted + neutral`; neutral: completed without a judged promise.
"""

from typing import Literal

import msgspec

from tokenfleet.contracts.requests import Ended, Objective, Outcome
from tokenfleet.errors import ContractError

Term = Literal["ttft", "tpot", "e2e"]
WasteCause = Literal["timed_out", "cancelled", "failed", "lost", "late"]

UNCLASSIFIED = "unclassified"
LARGEST = 2**63


class LedgerRow(msgspec.Struct, frozen=True):
    """What one request was worth. Field names are the ledger's column names; durations in engine seconds."""

    event_id: str
    event_schema: int
    request_id: str
    attempt: int
    client_request_id: str | None
    tenant: str
    request_class: str | None
    site: str
    pool: str
    model: str
    instance: str | None
    outcome: Outcome
    reason: str
    status: int
    stream: bool
    admitted: bool
    degraded: bool
    submitted_ns: int
    ended_ns: int
    time_scale: float
    input_tokens: int
    reused_tokens: int
    computed_tokens: int
    output_tokens: int
    tokens_exact: bool
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    predicted_ttft_s: float | None
    predicted_tpot_s: float | None
    objective_ttft_s: float | None
    objective_tpot_s: float | None
    objective_e2e_s: float | None
    met: bool | None
    missed: tuple[str, ...]
    """Terms over their limit, in the order ttft, tpot, e2e."""
    good_output_tokens: int
    waste_cause: WasteCause | None
    wasted_input_tokens: int
    wasted_output_tokens: int
    retried_input_tokens: int
    retried_output_tokens: int
    queue_wait_s: float | None
    revision: int
    """Of several rows of a request the one with the highest counts: 0 for `lost`, 1 for what its ingress said."""
    prefill_gpu_s: float | None
    decode_gpu_s: float | None
    retried_gpu_s: float
    wasted_gpu_s: float | None
    """None where the engine is not known."""

    @property
    def neutral_output_tokens(self) -> int:
        """Output that is neither good nor wasted."""
        return self.output_tokens - self.good_output_tokens - self.wasted_output_tokens

    @property
    def wasted_tokens(self) -> int:
        """Prompt and output tokens that bought nothing, abandoned attempts included."""
        retried = self.retried_input_tokens + self.retried_output_tokens
        return self.wasted_input_tokens + self.wasted_output_tokens + retried

    @property
    def answered(self) -> bool:
        """Whether an engine's answer began, so that its prompt had certainly been looked up in the cache."""
        began = self.outcome == "completed" or self.ttft_s is not None or self.output_tokens > 0
        return began and self.instance is not None


def account(ended: Ended) -> LedgerRow:
    """The ledger row of one request.

    Raises:
        ContractError: a figure is not credible (negative, or beyond 63 bits); the message names it.
    """
    _check(ended)
    objective = ended.objective or Objective()
    within = _judged_terms(ended, objective)
    met = _met(ended, objective, within)
    at_engine = _at_engine(ended)
    reused = min(ended.reused_tokens, ended.input_tokens)
    computed = ended.input_tokens - reused if at_engine else 0
    cause = _waste_cause(ended.outcome, met)
    return LedgerRow(
        event_id=ended.event_id,
        event_schema=ended.schema,
        request_id=ended.request_id,
        attempt=ended.attempt,
        client_request_id=ended.client_request_id,
        tenant=ended.tenant,
        request_class=ended.request_class,
        site=ended.site,
        pool=ended.pool,
        model=ended.model,
        instance=ended.instance,
        outcome=ended.outcome,
        reason=ended.reason,
        status=ended.status,
        stream=ended.stream,
        admitted=ended.admitted,
        degraded=ended.degraded,
        submitted_ns=ended.submitted_ns,
        ended_ns=ended.time_ns,
        time_scale=ended.time_scale,
        input_tokens=ended.input_tokens,
        reused_tokens=reused,
        computed_tokens=computed,
        output_tokens=ended.output_tokens,
        tokens_exact=ended.tokens_exact,
        ttft_s=ended.ttft_s,
        tpot_s=ended.tpot_s,
        e2e_s=ended.e2e_s,
        predicted_ttft_s=ended.predicted_ttft_s,
        predicted_tpot_s=ended.predicted_tpot_s,
        objective_ttft_s=objective.ttft_s,
        objective_tpot_s=objective.tpot_s,
        objective_e2e_s=objective.e2e_s,
        met=met,
        missed=tuple(term for term, kept in within.items() if not kept),
        good_output_tokens=ended.output_tokens if met else 0,
        waste_cause=cause,
        wasted_input_tokens=computed if cause else 0,
        wasted_output_tokens=ended.output_tokens if cause else 0,
        retried_input_tokens=ended.retried_input_tokens,
        retried_output_tokens=ended.retried_output_tokens,
        queue_wait_s=ended.queue_wait_s,
        revision=0 if ended.outcome == "lost" else 1,
        prefill_gpu_s=ended.prefill_gpu_s,
        decode_gpu_s=ended.decode_gpu_s,
        retried_gpu_s=ended.retried_gpu_s,
        wasted_gpu_s=_wasted_gpu_s(ended, cause),
    )


def _check(ended: Ended) -> None:
    figures = {
        "submitted_ns": ended.submitted_ns,
        "time_ns": ended.time_ns,
        "e2e_s": ended.e2e_s,
        "ttft_s": ended.ttft_s,
        "tpot_s": ended.tpot_s,
        "input_tokens": ended.input_tokens,
        "reused_tokens": ended.reused_tokens,
        "output_tokens": ended.output_tokens,
        "retried_input_tokens": ended.retried_input_tokens,
        "retried_output_tokens": ended.retried_output_tokens,
        "queue_wait_s": ended.queue_wait_s,
        "prefill_gpu_s": ended.prefill_gpu_s,
        "decode_gpu_s": ended.decode_gpu_s,
        "retried_gpu_s": ended.retried_gpu_s,
    }
    for name, figure in figures.items():
        if figure is not None and not 0 <= figure < LARGEST:
            raise ContractError(f"{name} of request {ended.request_id} is not credible: {figure}")
    if ended.time_scale <= 0:
        raise ContractError(f"time_scale of request {ended.request_id} is not positive: {ended.time_scale}")


def _at_engine(ended: Ended) -> bool:
    if ended.outcome == "lost":
        return ended.ttft_s is not None
    return ended.outcome != "rejected" and (ended.instance is not None or ended.outcome == "completed")


def _judged_terms(ended: Ended, objective: Objective) -> dict[Term, bool]:
    """Each term that can be judged, and whether it stayed within its limit."""
    within: dict[Term, bool] = {}
    completed, end_known = ended.outcome == "completed", ended.outcome != "lost"
    if objective.ttft_s is not None:
        if ended.ttft_s is not None:
            within["ttft"] = ended.ttft_s <= objective.ttft_s
        elif ended.stream and not completed and end_known and ended.e2e_s > objective.ttft_s:
            within["ttft"] = False
    if objective.tpot_s is not None and ended.tpot_s is not None:
        within["tpot"] = ended.tpot_s <= objective.tpot_s
    limits = [objective.e2e_s, _implied_e2e_s(ended, objective) if completed else None]
    declared = [limit for limit in limits if limit is not None]
    if declared and end_known and (completed or ended.e2e_s > min(declared)):
        within["e2e"] = ended.e2e_s <= min(declared)
    return within


def _implied_e2e_s(ended: Ended, objective: Objective) -> float | None:
    """When an answer without a visible first token must have ended to be as good as promised."""
    if ended.ttft_s is not None or objective.ttft_s is None:
        return None
    later_tokens = max(ended.output_tokens - 1, 0)
    if later_tokens and objective.tpot_s is None:
        return None
    return objective.ttft_s + (objective.tpot_s or 0.0) * later_tokens


def _met(ended: Ended, objective: Objective, within: dict[Term, bool]) -> bool | None:
    if not objective.declared:
        return None
    if ended.outcome == "completed":
        return all(within.values()) if within else None
    if ended.outcome == "cancelled":
        return None if all(within.values()) else False
    return False


def _waste_cause(outcome: Outcome, met: bool | None) -> WasteCause | None:
    if outcome == "completed":
        return "late" if met is False else None
    return None if outcome == "rejected" else outcome


def _wasted_gpu_s(ended: Ended, cause: WasteCause | None) -> float | None:
    if cause is None:
        return ended.retried_gpu_s
    if ended.prefill_gpu_s is None and ended.decode_gpu_s is None:
        return ended.retried_gpu_s or None
    return (ended.prefill_gpu_s or 0.0) + (ended.decode_gpu_s or 0.0) + ended.retried_gpu_s
