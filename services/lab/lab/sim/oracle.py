"""What no router can beat.

TTFT: each request alone on an empty instance of the fastest profile, with a cache that holds every prompt of the
run seen before, anywhere, and no network. Where no profile is fastest in every coefficient, the best of each.

Goodput: a clairvoyant fluid relaxation. Exact lengths are known. A request needs at least this much engine time:
- its uncached prompt (infinite shared cache) and its decode steps, at the profile's coefficients;
- its share of the fixed cost of iterations. An iteration holds at most `iteration_budget_tokens` tokens, decodes at
  most `max_running_requests` requests, and these hold at most `kv_capacity_tokens` of context, so at least that
  share of an iteration is spent on it; of the three kinds of share, the one that gives the tightest bound is used.
Instances may work on any part of any request at any time between the first arrival and the last moment at which a
request can still meet its objective: order, arrival times, queues and memory fragmentation are relaxed. Requests are
taken by least work per good token until the time is used up, the last one in part (a fractional knapsack, so an
upper bound). Those whose TTFT alone on an empty instance misses the objective count for nothing. A slower profile
counts as the share of the fastest that its most favourable coefficient gives. The duration is the most favourable one:
no shorter than the arrivals take, and only what can have ended within it counts, with the engine time there is in it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from lab.sim.cluster import MODEL, Cluster
from lab.sim.figures import cdf
from lab.sim.workload import BUDGET_TOKENS, Submission, Workload
from slomax.policy.classify import classify, objective_for
from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.contracts.ledger import Percentiles
from tokenfleet.contracts.policy import Policy
from tokenfleet.contracts.requests import Objective, RequestSpec
from tokenfleet.engine.profile import decode_step_s, prefill_s

RELAXATION = (
    "TTFT: alone on an empty instance of the fastest profile, infinite shared cache, no network. Goodput: exact "
    "lengths known; total work against total engine time (fluid: order, arrival times and queues relaxed), infinite "
    "shared cache, requests by least work per good token, the last one in part."
)

DURATIONS = 64
"""Durations tried for the bound; between them it is a little too generous."""

Floats = npt.NDArray[np.float64]


class _Bounded(NamedTuple):
    """One request as the bound sees it."""

    arrival_s: float
    ttft_s: float
    output_tokens: int
    objective: Objective
    work_s: tuple[float, ...]
    """Least engine time, by the kind of share of an iteration's fixed cost."""
    fastest_end_s: float
    latest_end_s: float


def bound(cluster: Cluster, work: Workload, policy: Policy) -> dict[str, Any]:
    """`ttft_s`, `goodput_tokens_per_s`, `attainment_offered` and how they were relaxed."""
    if not len(work) or not cluster.instances:
        return {
            "ttft_s": msgspec.to_builtins(Percentiles()),
            "goodput_tokens_per_s": 0.0,
            "attainment_offered": None,
            "prefix_reuse": None,
            "relaxation": RELAXATION,
            "series": {},
        }
    profiles = [spec.engine_profile for spec in cluster.instances]
    profile = _fastest(profiles)
    reused = list(infinite_cache_reuse(work, cluster.block_size))
    requests = [
        _bounded(submission, reused_tokens, profile, policy)
        for submission, reused_tokens in zip(work, reused, strict=True)
    ]
    ttft_s = [request.ttft_s for request in requests]
    p50, p95, p99 = (float(value) for value in np.percentile(ttft_s, (50, 95, 99)))
    first_s = next(iter(work)).arrival_s
    arrivals_s = max(request.arrival_s for request in requests) - first_s
    instances = sum(_share_of(one, profile) for one in profiles)
    good = [request for request in requests if _can_be_good(request)]
    tokens = np.array([request.output_tokens for request in good], dtype=float)
    window_s = max((request.latest_end_s for request in good), default=first_s) - first_s
    works = np.array([request.work_s for request in good], dtype=float).reshape(-1, 3)
    kinds = range(works.shape[1])
    capacity_s = instances * window_s
    ends_s = np.array([request.fastest_end_s for request in good], dtype=float) - first_s
    goodput = min(_greatest_rate(works[:, kind], tokens, ends_s, arrivals_s, instances) for kind in kinds)
    good_requests = min(_knapsack(works[:, kind], np.ones(len(good)), capacity_s) for kind in kinds)
    return {
        "ttft_s": {"p50": p50, "p95": p95, "p99": p99},
        "goodput_tokens_per_s": goodput,
        "attainment_offered": good_requests / len(work),
        "prefix_reuse": sum(reused) / sum(submission.request.input_tokens for submission in work),
        "relaxation": RELAXATION,
        "series": {"ttft_cdf": cdf(ttft_s)},
    }


def infinite_cache_reuse(work: Workload, block_size: int) -> Iterator[int]:
    """Prompt tokens of each request that some earlier one had too, in whole engine blocks."""
    seen: set[int] = set()
    for submission in work:
        request = submission.request
        known = 0
        for block in request.block_ids:
            if block not in seen:
                break
            known += 1
        # The last token is always computed: its output is the next token.
        reusable = min(known * request.trace_block_tokens, request.input_tokens - 1)
        yield max(0, reusable) // block_size * block_size
        seen.update(request.block_ids)


def _bounded(submission: Submission, reused: int, profile: EngineProfile, policy: Policy) -> _Bounded:
    request = submission.request
    new, output = request.input_tokens - reused, request.output_tokens
    decoded = max(0, output - 1)
    context_tokens = decoded * (request.input_tokens + (output + 1) / 2)
    """Tokens in KV, added up over the decode steps."""
    busy_s = (
        new * (profile.prefill_s_per_token + profile.attention_s_per_token_pair * (reused + new / 2))
        + decoded * profile.decode_s_per_request
        + profile.decode_s_per_context_token * context_tokens
    )
    shares = (
        (new + decoded) / profile.iteration_budget_tokens,
        decoded / profile.max_running_requests,
        context_tokens / profile.kv_capacity_tokens,
    )
    objective = _objective(submission, policy)
    ttft_s = prefill_s(profile, new, reused)
    least_decode_s = decoded * decode_step_s(profile, 1, request.input_tokens)
    return _Bounded(
        arrival_s=submission.arrival_s,
        ttft_s=ttft_s,
        output_tokens=output,
        objective=objective,
        work_s=tuple(busy_s + profile.base_s * share for share in shares),
        fastest_end_s=submission.arrival_s + ttft_s + least_decode_s,
        latest_end_s=submission.arrival_s
        + _patience_s(objective, output, ttft_s + least_decode_s, submission.timeout_s),
    )


def _objective(submission: Submission, policy: Policy) -> Objective:
    request = submission.request
    spec = RequestSpec(
        model=MODEL,
        entry_site=submission.entry_site,
        ingress="lab",
        input_tokens=request.input_tokens,
        max_output_tokens=BUDGET_TOKENS,
        block_size_tokens=request.trace_block_tokens,
        task=submission.task,
    )
    request_class, _ = classify(spec, policy)
    return objective_for(request_class, spec, policy)


def _patience_s(objective: Objective, output_tokens: int, fastest_s: float, timeout_s: float) -> float:
    """From arrival to the last moment at which the answer may end and still be good."""
    if objective.e2e_s is not None:
        return objective.e2e_s
    if objective.ttft_s is None or objective.tpot_s is None:
        # Nothing limits a term that was not promised but the client's own patience.
        return max(fastest_s, timeout_s)
    return objective.ttft_s + objective.tpot_s * max(0, output_tokens - 1)


def _can_be_good(request: _Bounded) -> bool:
    objective = request.objective
    return (objective.ttft_s is None or request.ttft_s <= objective.ttft_s) and (
        request.fastest_end_s <= request.latest_end_s
    )


COEFFICIENTS = (
    "base_s",
    "decode_s_per_request",
    "decode_s_per_context_token",
    "prefill_s_per_token",
    "attention_s_per_token_pair",
)
CAPACITIES = ("kv_capacity_tokens", "iteration_budget_tokens", "max_running_requests")


def _fastest(profiles: Sequence[EngineProfile]) -> EngineProfile:
    """The best of every coefficient: where none is fastest in all, an instance that none can beat."""
    fastest = min(profiles, key=lambda profile: profile.prefill_s_per_token)
    best = {name: min(getattr(profile, name) for profile in profiles) for name in COEFFICIENTS}
    return msgspec.structs.replace(fastest, **best)


def _share_of(profile: EngineProfile, fastest: EngineProfile) -> float:
    """How much of the fastest instance this one can be at most."""
    if profile == fastest:
        return 1.0
    ratios = [
        getattr(fastest, name) / getattr(profile, name) for name in COEFFICIENTS if getattr(profile, name)
    ]
    larger = max(getattr(profile, name) / getattr(fastest, name) for name in CAPACITIES)
    return max(ratios, default=1.0) * max(1.0, larger)


def _greatest_rate(
    work_s: Floats, value: Floats, ends_s: Floats, arrivals_s: float, instances: float
) -> float:
    """The greatest value per second over all durations that a run can have.

    Within a duration, only what can have ended counts. Between two neighbouring edges the set of those is at most
    that of the right one, and for a fixed set the rate falls with the duration, so it is taken at the left one.
    """
    if not len(value):
        return 0.0
    edges = np.unique(np.append(np.maximum(ends_s, arrivals_s), max(arrivals_s, float(ends_s.min()))))
    if len(edges) > DURATIONS:
        edges = edges[np.linspace(0, len(edges) - 1, DURATIONS).round().astype(int)]
    rates: list[float] = []
    lefts: list[float] = edges.tolist()
    for left, right in zip(lefts, [*lefts[1:], math.inf], strict=True):
        possible = (ends_s < right) | (ends_s <= left)
        rates.append(_knapsack(work_s[possible], value[possible], instances * left) / left)
    return max(rates)


def _knapsack(work_s: Floats, value: Floats, capacity_s: float) -> float:
    """The greatest value that fits, when items may be cut."""
    if not len(value):
        return 0.0
    order = np.argsort(work_s / value)
    used = np.cumsum(work_s[order])
    whole = int(np.searchsorted(used, capacity_s, side="right"))
    taken = float(value[order][:whole].sum())
    if whole < len(value):
        before = float(used[whole - 1]) if whole else 0.0
        last = order[whole]
        taken += float(value[last] * (capacity_s - before) / work_s[last])
    return taken
