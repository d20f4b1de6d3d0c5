"""What a request would meet at each of many instances, and what its arrival would do to those there. Pure.

One iteration takes `step + chunk`, where `step` depends on who decodes and `chunk` on whose prompt is being
computed (`tokenfleet.engine.profile`); each of the two is corrected by a learned factor. A request waits for
the prefills ahead of it (engines serve first come, first served) and for KV room.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt

from tokenfleet.load.lengths import bins_of
from tokenfleet.load.shadow import HEAD_DONE_AT_MOST
from tokenfleet.load.table import Floats, InstanceColumns, Ints, LoadTable, RequestColumns

UNKNOWN_PREFILL_TOKENS = 4_096.0
"""What a request that only telemetry knows of is taken to have for a prompt."""
TRUSTED_S, DISTRUSTED_S = 1.0, 10.0
"""Telemetry's unknown requests count fully up to the first age, and no more from the second on."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Predictions:
    """By instance, in engine seconds. `ttft_s` is without a wait for KV room, so it is at least this."""

    slots: Ints
    now_s: float
    input_tokens: int
    ttft_s: Floats
    backlog_s: Floats
    own_prefill_s: Floats
    tpot_s: Floats
    own_compute_s: Floats
    """Of `own_prefill_s`, what delays decodes beyond their own pace."""
    step_s: Floats
    head_done: Floats
    """The share of the prefill at the head of the queue that is done."""
    chunk_s: Floats
    """What one full iteration of prefill takes on top of a step."""
    instances: InstanceColumns[Floats]


@dataclass(frozen=True, slots=True)
class Outlook:
    """A closer look at some instances."""

    kv_wait_s: Floats
    """Until running requests have freed the KV it needs."""
    expected_misses: Floats
    """How many requests there the arrival is expected to push over their TPOT objective."""
    kv_free_tokens: Floats
    """What would be left of the KV with it; negative where it has to wait for room."""


def predict(
    table: LoadTable,
    slots: Ints,
    input_tokens: int,
    reused_tokens: Floats | float,
    offloaded_tokens: Floats | float,
    now_s: float,
) -> Predictions:
    """What a request would meet at each of `slots`.

    Args:
        table: all that is going on.
        slots: the instances asked about.
        input_tokens: of the prompt.
        reused_tokens: of these, cached there.
        offloaded_tokens: of those, to be restored from host memory or disk.
        now_s: engine seconds.
    """
    at = table.instances(slots)
    passed = np.maximum(now_s - at.time_s, 0.0) * at.iterations_per_s
    trust = np.clip((DISTRUSTED_S - (now_s - at.heard_s)) / (DISTRUSTED_S - TRUSTED_S), 0.0, 1.0)
    unknown_decoding = at.unknown_decoding * trust
    decoding = at.decoding + unknown_decoding
    context = at.context_tokens + at.decoding * passed + unknown_decoding * UNKNOWN_PREFILL_TOKENS
    room = np.maximum(at.iteration_budget_tokens - decoding, 1.0)
    step_s = at.step_factor * (
        at.base_s + at.decode_s_per_request * decoding + at.decode_s_per_context_token * context
    )
    unknown_tokens = at.unknown_waiting * trust * UNKNOWN_PREFILL_TOKENS
    pending_tokens = at.pending_tokens + unknown_tokens
    pending_s = at.prefill_factor * (at.pending_compute_s + unknown_tokens * at.prefill_s_per_token)
    head_s = at.prefill_factor * at.head_compute_s + step_s * np.maximum(at.head_tokens / room, 1.0)
    head_done = np.clip((now_s - at.head_start_s) / np.maximum(head_s, 1e-9), 0.0, HEAD_DONE_AT_MOST)
    head_done = np.where((at.pending > 0) & (at.blocked == 0), head_done, 0.0)

    uncached = np.maximum(input_tokens - reused_tokens, 1.0)
    own_compute_s = (
        at.prefill_factor
        * uncached
        * (at.prefill_s_per_token + at.attention_s_per_token_pair * (input_tokens - uncached / 2))
    )
    iterations_before = np.ceil(pending_tokens / room)
    iterations = np.ceil((pending_tokens + uncached) / room)
    backlog_s = np.maximum(pending_s + step_s * iterations_before - head_done * head_s, 0.0)
    own_s = (
        own_compute_s + step_s * (iterations - iterations_before) + offloaded_tokens * at.restore_s_per_token
    )
    boundary_s = np.where((pending_tokens == 0) & (decoding > 0), step_s / 2, 0.0)
    return Predictions(
        slots=slots,
        now_s=now_s,
        input_tokens=input_tokens,
        ttft_s=backlog_s + own_s + boundary_s,
        backlog_s=backlog_s,
        own_prefill_s=own_s,
        tpot_s=step_s
        + at.step_factor * (at.decode_s_per_request + at.decode_s_per_context_token * input_tokens),
        own_compute_s=own_compute_s,
        step_s=step_s,
        head_done=head_done,
        chunk_s=(pending_s + own_compute_s) / np.maximum(iterations, 1.0),
        instances=at,
    )


def outlook(
    table: LoadTable,
    predictions: Predictions,
    which: Ints,
    quantiles: Floats,
    foreseen_share: float = 0.0,
) -> Outlook:
    """A closer look at some of the instances that were predicted for, request by request.

    A request with `g` tokens out after `e` seconds and `R` to come, behind `p` seconds of prefill arithmetic, ends
    after about `e + R*step + min(p, R*chunk)`. `R` is not known: seven equally likely cases stand for it. The
    arrival adds to `p` and to `step`; whoever meets the objective without it and not with it is a new miss.

    Args:
        table: all that is going on.
        predictions: for all instances.
        which: positions in `predictions`.
        quantiles: of answers' lengths (`OutputLengths.quantiles`).
        foreseen_share: of the time from now on, taken by prefills that are still to arrive: the new misses are
            those of the arrival and of these together.
    """
    requests, there = table.requests(predictions.slots[which])
    at = InstanceColumns(*(column[which] for column in predictions.instances))
    needed_tokens = (
        at.kv_per_context * at.context_tokens + at.pending_context_tokens + predictions.input_tokens
    )
    free_tokens = at.kv_capacity_tokens - needed_tokens
    if not there.size:
        nothing = np.zeros(len(which))
        return Outlook(_kv_wait_s(at, -free_tokens, nothing[:, None], nothing[:, None]), nothing, free_tokens)
    now_s = predictions.now_s
    step_s, chunk_s = predictions.step_s[which, None, None], predictions.chunk_s[which, None, None]
    produced, remaining = _progress(requests, at, now_s, quantiles)
    pending_s = _prefill_behind_s(requests, at, predictions.head_done[which])[:, :, None]
    before_s = remaining * step_s + np.minimum(pending_s, remaining * chunk_s)
    longer_step_s = predictions.tpot_s[which, None, None] / (1.0 - foreseen_share)
    after_s = remaining * longer_step_s + np.minimum(
        pending_s + predictions.own_compute_s[which, None, None], remaining * chunk_s
    )
    elapsed_s = np.maximum(now_s - requests.first_token_s, 0.0)[:, :, None]
    with np.errstate(invalid="ignore"):
        allowed_s = (
            requests.tpot_objective_s[:, :, None] * (produced[:, :, None] + remaining - 1.0) - elapsed_s
        )
        missed = (after_s > allowed_s) & (before_s <= allowed_s) & there[:, :, None]
    decoding = there & np.isfinite(requests.first_token_s)
    return Outlook(
        _kv_wait_s(
            at,
            -free_tokens,
            np.where(decoding[:, :, None], before_s, np.inf).reshape(len(which), -1),
            np.broadcast_to(
                np.where(decoding, requests.context_tokens + produced, 0.0)[:, :, None], before_s.shape
            ).reshape(len(which), -1)
            / quantiles.shape[-1],
        ),
        missed.sum(axis=(1, 2)) / quantiles.shape[-1],
        free_tokens,
    )


def _progress(
    requests: RequestColumns[Floats], at: InstanceColumns[Floats], now_s: float, quantiles: Floats
) -> tuple[Floats, Floats]:
    """Tokens out so far by `[instance, request]`, and to come by `[instance, request, case]`."""
    iterations = at.iterations + np.maximum(now_s - at.time_s, 0.0) * at.iterations_per_s
    produced = 1.0 + np.maximum(iterations[:, None] - requests.first_iteration, 0.0)
    rows = requests.length_row.astype(np.intp)
    lengths = np.minimum(quantiles[rows, bins_of(produced)], requests.max_output_tokens[:, :, None])
    return produced, np.maximum(lengths - produced[:, :, None], 1.0)


def _prefill_behind_s(
    requests: RequestColumns[Floats], at: InstanceColumns[Floats], head_done: Floats
) -> Floats:
    """Prefill arithmetic still to be done once a request decodes, by `[instance, request]`."""
    done_s = at.enqueued_compute_s - at.pending_compute_s + head_done * at.head_compute_s
    through_s = np.maximum(requests.compute_through_s, done_s[:, None])
    return at.prefill_factor[:, None] * np.maximum(at.enqueued_compute_s[:, None] - through_s, 0.0)


def _kv_wait_s(at: InstanceColumns[Floats], short: Floats, ends_s: Floats, freed_tokens: Floats) -> Floats:
    """Until the KV that is short has been freed by requests that end.

    Args:
        at: the instances.
        short: tokens of KV that are short; none where negative.
        ends_s: by `[instance, possible end]`.
        freed_tokens: expected to be freed by each of those ends.
    """
    wait_s = np.zeros(len(short))
    positions: list[int] = np.flatnonzero(short > 0).tolist()
    for position in positions:
        order: Ints = np.argsort(ends_s[position])
        freed: Floats = np.cumsum(freed_tokens[position, order]) * at.kv_per_context[position]
        enough = int(np.count_nonzero(freed < short[position]))
        known: Floats = ends_s[position, order]
        last = float(known[min(enough, len(known) - 1)].item())
        wait_s[position] = last if isfinite(last) else float(known[np.isfinite(known)].max(initial=0.0))
    return wait_s
