"""What sending a request to an instance costs, in seconds: its own latency and the harm to others. Pure.

    cost = patience * wait + (1 + WORK_PRICE) * own prefill
         + MISS_PRICE_S * requests there expected to be pushed over their objective
         + EVICTION_PRICE * work expected to be done again because its blocks push others out of the cache
         + CROWDING_PRICE * longer waits of the next arrivals

Each term, and what it gained, is in docs/adr/0008-expected-cost.md.
"""

from dataclasses import dataclass

import numpy as np

from tokenfleet.contracts.requests import Objective
from tokenfleet.load import LoadView, OutputLengths, Predictions, outlook
from tokenfleet.load.prices import MISS_PRICE_S, WORK_PRICE
from tokenfleet.load.table import Floats, Ints
from tokenpilot.policy.demand import Demand

EVICTION_PRICE = 1.0
CACHE_MEMORY_S = 120.0
"""A cached block is used again with a chance that falls with its age, by a factor e in about this time: between
the conversation trace (0.34 at once, 0.19 after 120 s) and the synthetic one (0.64, 0.35)."""
CROWDING_PRICE = 0.15
NEXT_ARRIVALS = 16
"""How many arrivals the crowding looks ahead."""
USUAL_SLACK_S = 4.0
"""A request with this much time between its own prefill and its objective counts its wait as it is."""
LEAST_PATIENCE, GREATEST_PATIENCE = 0.05, 3.0
"""Bounds of the weight of a second of wait."""
LEAST_SLACK_S = 0.3
LOOKED_AT = 16
"""Instances, of the least cost without a look at the requests there, whose requests are looked at one by one."""


@dataclass(slots=True)
class Costs:
    """By position among the usable instances; NaN where an instance was not looked at closely."""

    ttft_s: Floats
    """With the wait for KV room where it was worked out."""
    kv_wait_s: Floats
    expected_misses: Floats
    cost_s: Floats


def work_out(
    names: list[str],
    predictions: Predictions,
    reused_tokens: Floats,
    objective: Objective | None,
    load: LoadView,
    lengths: OutputLengths,
    demand: Demand,
) -> Costs:
    """The costs of the instances that could be best.

    What an instance costs at least needs no look at the requests there: those that cost least so are looked at.

    Args:
        names: of the instances predicted for.
        predictions: what the request would meet there.
        reused_tokens: of its prompt, cached there.
        objective: what it was promised.
        load: what is going on there.
        lengths: how long answers are.
        demand: what arrives, and how old the caches' oldest blocks are.
    """
    own_s = predictions.own_prefill_s
    patience = _patience(own_s, objective)
    waits_s = predictions.ttft_s - own_s
    at_least_s = patience * waits_s + (1.0 + WORK_PRICE) * own_s
    some: Ints = np.argsort(at_least_s, kind="stable")[:LOOKED_AT]
    unknown = np.full(len(names), np.nan)
    costs = Costs(predictions.ttft_s.copy(), unknown, unknown.copy(), unknown.copy())
    closer = outlook(load.table, predictions, some, lengths.quantiles)
    kv_s = np.maximum(closer.kv_wait_s - predictions.backlog_s[some], 0.0)
    costs.kv_wait_s[some] = closer.kv_wait_s
    costs.expected_misses[some] = closer.expected_misses
    costs.ttft_s[some] += kv_s
    costs.cost_s[some] = (
        at_least_s[some]
        + patience[some] * kv_s
        + MISS_PRICE_S * closer.expected_misses
        + EVICTION_PRICE * _evicted_s([names[i] for i in some], predictions, reused_tokens, some, demand)
        + CROWDING_PRICE * _crowding_s(predictions, some, demand)
    )
    return costs


def _patience(own_prefill_s: Floats, objective: Objective | None) -> Floats:
    """What a second of wait counts: more where little slack is left, less where much is."""
    promised_s = (objective.ttft_s or objective.e2e_s) if objective else None
    if promised_s is None:
        return np.ones(len(own_prefill_s))
    slack_s = np.maximum(promised_s - own_prefill_s, LEAST_SLACK_S)
    return np.clip(USUAL_SLACK_S / slack_s, LEAST_PATIENCE, GREATEST_PATIENCE)


def _evicted_s(
    names: list[str], predictions: Predictions, reused_tokens: Floats, some: Ints, demand: Demand
) -> Floats:
    """Prefill that is likely done again because this request's blocks push out the oldest ones there."""
    ages_s = np.array([demand.oldest_block_age_s(name, predictions.now_s) for name in names])
    new_tokens = predictions.input_tokens - reused_tokens[some]
    at = predictions.instances
    return np.exp(-ages_s / CACHE_MEMORY_S) * new_tokens * (at.prefill_factor * at.prefill_s_per_token)[some]


def _crowding_s(predictions: Predictions, some: Ints, demand: Demand) -> Floats:
    """How much longer the next arrivals would wait in all, each going where it waits least, than without it."""
    cases = len(some) + 1
    free_s = np.repeat(predictions.backlog_s[None, :], cases, axis=0)
    free_s[np.arange(len(some)), some] += predictions.own_prefill_s[some]  # the last case is without it
    when_free_s, first_of_case = free_s.ravel(), np.arange(cases) * free_s.shape[1]
    starts_s, arrival_s = np.zeros(cases), 0.0
    for _ in range(NEXT_ARRIVALS):
        arrival_s += demand.interval_s
        freest = free_s.argmin(axis=1) + first_of_case
        start_s = np.maximum(when_free_s[freest], arrival_s)
        starts_s += start_s
        when_free_s[freest] = start_s + demand.work_s
    return np.maximum(starts_s[:-1] - starts_s[-1], 0.0)
