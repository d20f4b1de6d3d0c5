"""Drawing the sessions of one stratum, all at once.

Lengths come from the stratum's quantiles through correlated normal scores, so they fit whatever the sessions
are. Where prompts continue each other, a session's lengths are put in ascending order, which leaves their
distribution as it was, and block `j` of its prompts is the same block in all that fill it.
"""

from statistics import NormalDist

import msgspec
import numpy as np

from lab.traces.columns import Floats, Integers
from lab.traces.kinds import Quantiles, Stratum
from lab.traces.model import TRACE_BLOCK_TOKENS

LEAST_DEADLINE_S = 1.0

_SCORES = np.linspace(-6, 6, 2_401)
_SHARES = np.array([NormalDist().cdf(score) for score in _SCORES.tolist()])


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """Requests as columns, in no order. Block ids are `run_starts` and `run_counts`: system prompt, session, own."""

    arrival_s: Floats
    input_tokens: Integers
    output_tokens: Integers
    tenants: Integers
    sessions: Integers
    """From 0 to `session_count`."""
    deadlines_s: Floats
    """After arrival; NaN where there is none."""
    run_starts: Integers
    """The first column counts from 0, the others from 0 to `id_count`."""
    run_counts: Integers
    session_count: int
    id_count: int


def draw_sessions(
    stratum: Stratum,
    *,
    requests: int,
    span_s: float,
    tenant_shares: Floats,
    system_prompt_blocks: int,
    random: np.random.Generator,
) -> Drawn:
    """So many requests (at least one) of sessions that begin at random times from 0 to `span_s`.

    What would come after the end comes as much after the beginning, as if the trace went round: so the rate
    is even, and no session begins before the trace or is cut off by its end.
    """
    sizes = _session_sizes(stratum, requests, random)
    session_count = len(sizes)
    session = np.repeat(np.arange(session_count), sizes)
    firsts = np.cumsum(sizes) - sizes
    tenants = random.choice(len(tenant_shares), session_count, p=tenant_shares)[session]

    gaps_s = quantile(stratum.gaps_s, random.random(requests))
    gaps_s[firsts] = 0.0
    elapsed_s = np.cumsum(gaps_s)
    elapsed_s -= elapsed_s[firsts][session]
    arrival_s = (random.uniform(0, span_s, session_count)[session] + elapsed_s) % span_s
    deadlines_s = np.full(requests, np.nan)
    if stratum.deadline_s is not None:
        due_s = quantile(stratum.deadline_s, random.random(session_count))[session]
        deadlines_s = np.maximum(due_s - elapsed_s, LEAST_DEADLINE_S)

    inputs = _alike(stratum.inputs_alike, session, session_count, random)
    outputs = _alike(stratum.outputs_alike, session, session_count, random)
    outputs = stratum.output_by_input * inputs + (1 - stratum.output_by_input**2) ** 0.5 * outputs
    if stratum.template_tokens is None:
        by_time, by_length = np.lexsort((arrival_s, session)), np.lexsort((inputs, session))
        arrival_s, deadlines_s = arrival_s[by_time], deadlines_s[by_time]
        inputs, outputs = inputs[by_length], outputs[by_length]
    input_tokens = _tokens(stratum.input_tokens, inputs)
    run_starts, run_counts, id_count = _block_runs(
        input_tokens, session, firsts, system_prompt_blocks, stratum.template_tokens
    )
    return Drawn(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=_tokens(stratum.output_tokens, outputs),
        tenants=tenants,
        sessions=session,
        deadlines_s=deadlines_s,
        run_starts=run_starts,
        run_counts=run_counts,
        session_count=session_count,
        id_count=id_count,
    )


def _session_sizes(stratum: Stratum, requests: int, random: np.random.Generator) -> Integers:
    """Requests of each session; the last is cut so that they add up."""
    possible = np.array([size for size, _ in stratum.session_sizes])
    weights = np.array([weight for _, weight in stratum.session_sizes], dtype=float)
    ends = np.cumsum(random.choice(possible, requests, p=weights / weights.sum()))
    ends = np.minimum(ends[: np.searchsorted(ends, requests) + 1], requests)
    return np.diff(ends, prepend=0)


def quantile(knots: Quantiles, shares: Floats) -> Floats:
    """The values at these shares of a distribution, interpolated between the knots on a logarithmic scale."""
    at, values = np.array(knots, dtype=float).T
    return np.exp(np.interp(shares, at, np.log(values)))


def _tokens(knots: Quantiles, scores: Floats) -> Integers:
    shares = np.interp(scores, _SCORES, _SHARES)
    return np.rint(quantile(knots, shares)).astype(np.int64)


def _alike(correlation: float, session: Integers, session_count: int, random: np.random.Generator) -> Floats:
    """A standard normal score for each request, correlated so within sessions."""
    common = random.standard_normal(session_count)[session]
    own = random.standard_normal(len(session))
    return correlation**0.5 * common + (1 - correlation) ** 0.5 * own


def _block_runs(
    input_tokens: Integers,
    session: Integers,
    firsts: Integers,
    system_prompt_blocks: int,
    template_tokens: int | None,
) -> tuple[Integers, Integers, int]:
    """`(starts, counts, ids used)`: the blocks of the system prompt, of the session and of the request alone."""
    full = input_tokens // TRACE_BLOCK_TOKENS
    started = -(-input_tokens // TRACE_BLOCK_TOKENS)
    system = np.minimum(full, system_prompt_blocks)
    shared = full if template_tokens is None else np.minimum(full, template_tokens // TRACE_BLOCK_TOKENS)
    shared = np.maximum(shared - system, 0)
    own = started - system - shared
    longest = np.maximum.reduceat(shared, firsts)
    session_starts = np.cumsum(longest) - longest
    session_ids = int(longest.sum())
    starts = np.stack(
        (np.zeros_like(shared), session_starts[session], session_ids + np.cumsum(own) - own), axis=1
    )
    return starts, np.stack((system, shared, own), axis=1), session_ids + int(own.sum())
