"""What a request would cost at each pool, in seconds, from their summaries. Pure.

    cost = round trips + transfer + wait + (1 + WORK_PRICE) * uncached prefill
         + MISS_PRICE_S * expected misses + price * uncached prefill

at the instance of the pool where that is least; a pool that is sought after by those who may use few others has a price, too
(`policy/demand.py`). Waits and misses are what the site's own deciders predicted when the summary
was made; the wait has fallen since by the time that passed, and risen by what was placed there from here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleetmind.policy.sites import Pool, SiteView
from tokenfleet.load.prefixes import Told, told_blocks
from tokenfleet.load.prices import MISS_PRICE_S, WORK_PRICE
from tokenfleet.load.summary import at_length, own_prefill_s, pool_load
from tokenfleet.load.table import Floats

ROUND_TRIPS = 2.0
"""A diverted request takes one to be decided on there, and one for its prompt and first token."""
BEFORE_ENGINE = 0.75
"""Of these, what has passed when its prompt is at the engine."""
BYTES_PER_TOKEN = 4.0
"""Of a prompt on the wire."""


@dataclass(frozen=True, slots=True)
class Way:
    """Between the entry and another site, in engine seconds."""

    round_trip_s: float = 0.0
    transfer_s_per_token: float = 0.0


HERE = Way()


@dataclass(frozen=True, slots=True)
class Estimate:
    """One pool as it looks for one request."""

    pool: Pool
    cost_s: float
    ttft_s: float
    """Round trips included."""
    work_s: float
    """Its own prefill, at the instance it would go to."""
    instance: int
    """By position in the summary."""
    reused_tokens: int
    way_s: float


def estimate(
    pools: Sequence[Pool],
    view: SiteView,
    ways: Mapping[str, Way],
    prices: Sequence[float],
    input_tokens: int,
    block_size_tokens: int,
    blocks: Sequence[int],
    now_s: float,
) -> list[Estimate]:
    """Of pools whose load is known, in their order; those where the prompt fits no instance are left out.

    Args:
        pools: that may serve the request.
        view: where their backlogs are kept.
        ways: by site; none to the entry itself.
        prices: seconds that a second of prefill costs beyond its time, by pool.
        input_tokens: of the prompt.
        block_size_tokens: of its blocks.
        blocks: hashes of its full blocks.
        now_s: monotonic wall seconds.
    """
    if not pools:
        return []
    counts = [pool.backlog_s.size for pool in pools]
    starts = np.concatenate([[0], np.cumsum(counts)])
    load = pool_load(np.concatenate([pool.columns for pool in pools if pool.columns is not None], axis=1))
    backlog_s = view.backlogs_now_s(pools, now_s)
    reused = _reused_tokens(pools, starts, int(starts[-1]), blocks, block_size_tokens, input_tokens)
    uncached = np.maximum(input_tokens - reused, 1.0)
    own_s = own_prefill_s(load, input_tokens, uncached)
    wait_s = np.maximum(backlog_s, at_length(load.kv_wait_s, np.full(len(own_s), float(input_tokens))))
    misses = at_length(load.expected_misses, uncached)
    price = np.repeat([WORK_PRICE + price for price in prices], counts)
    way_s = np.array([_way_s(ways.get(pool.site, HERE), input_tokens) for pool in pools])
    # So much of its way is before the engine: meanwhile others are done there.
    wait_s = np.maximum(wait_s - BEFORE_ENGINE * np.repeat(way_s, counts), 0.0)
    cost_s = wait_s + (1.0 + price) * own_s + MISS_PRICE_S * misses
    cost_s[input_tokens > load.max_prompt_tokens] = np.inf
    bounds: list[int] = starts.tolist()
    found: list[Estimate] = []
    for pool, start, end, way in zip(pools, bounds, bounds[1:], way_s.tolist(), strict=False):
        best = start + int(cost_s[start:end].argmin()) if end > start else start
        if end == start or cost_s[best] == np.inf:
            continue
        own = float(own_s[best])
        found.append(
            Estimate(
                pool,
                float(cost_s[best]) + way,
                float(wait_s[best]) + own + way,
                own,
                best - start,
                int(reused[best]),
                way,
            )
        )
    return found


def _way_s(way: Way, input_tokens: int) -> float:
    return ROUND_TRIPS * way.round_trip_s + way.transfer_s_per_token * input_tokens


def _reused_tokens(
    pools: Sequence[Pool],
    starts: np.ndarray,
    instances: int,
    blocks: Sequence[int],
    block_size_tokens: int,
    input_tokens: int,
) -> Floats:
    """By instance of all pools: how much of the prompt is expected to be cached there."""
    reused = np.zeros(instances)
    told: dict[int, list[Told]] = {}
    for start, pool in zip(starts.tolist(), pools, strict=False):
        prefixes = pool.prefixes
        if prefixes.one_in not in told:
            told[prefixes.one_in] = told_blocks(blocks, prefixes.one_in)
        count = pool.backlog_s.size
        everyone = (1 << count) - 1
        for holders, depth in prefixes.matched(told[prefixes.one_in]):
            if holders & everyone == everyone:
                reused[start : start + count] = depth
            else:
                reused[[start + position for position in _positions(holders & everyone)]] = depth
    return np.minimum(reused * block_size_tokens, max(0, input_tokens - 1))


def _positions(bits: int) -> list[int]:
    positions: list[int] = []
    while bits:
        lowest = bits & -bits
        positions.append(lowest.bit_length() - 1)
        bits ^= lowest
    return positions
