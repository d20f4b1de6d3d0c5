"""A synthetic trace with the shape of Mooncake's conversation trace, for machines that lack the file.

Every length is drawn from the trace's measured quantiles, so lengths fit whatever the sessions are. Some
requests continue a session: of the open sessions the one whose last prompt is closest below the drawn length
is taken, and the new prompt starts with that session's full blocks. All prompts share one first block, as
the original's do (its system prompt).
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from lab.traces.model import TRACE_BLOCK_TOKENS, Trace, TraceRequest, blocks_in

FORMAT = "generated"

RATE_PER_S = 3.4
INPUT_QUANTILES = (
    (0.0, 891),
    (0.1, 964),
    (0.25, 2_306),
    (0.5, 6_909),
    (0.75, 15_367),
    (0.9, 27_367),
    (0.95, 39_550),
    (0.99, 85_399),
    (1.0, 126_195),
)
OUTPUT_QUANTILES = (
    (0.0, 1),
    (0.05, 10),
    (0.1, 24),
    (0.25, 156),
    (0.5, 350),
    (0.75, 472),
    (0.9, 597),
    (0.95, 698),
    (0.99, 1_115),
    (1.0, 2_000),
)
CONTINUE_SHARE = 0.357
"""Share of requests that continue a session where one fits; set so that 37.4 % of the input is reusable."""

ANSWER_CORRELATION = 0.65
"""Between the lengths of successive answers of a session, as measured on the conversation trace."""

THINK_MEDIAN_S = 123.0
THINK_SIGMA = 0.95
"""From one request of a session to its next: lognormal through the measured p10 and p90 (42 and 483 s)."""

PATIENCE_S = 900.0
"""How long a session that may continue waits for its next prompt before it is closed."""

_NORMAL = NormalDist()


class _Session(NamedTuple):
    """Ordered by the length of its last prompt, then by age."""

    input_tokens: int
    number: int
    block_ids: tuple[int, ...]
    """Full blocks of the last prompt."""
    answer_score: float
    """Where the last answer lies in the normal distribution behind the output lengths."""
    closes_s: float


def generate(requests: int, seed: int = 0) -> Trace:
    """A trace of that many requests; equal arguments give equal traces."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / RATE_PER_S, requests))
    arrivals -= arrivals[0] if requests else 0.0
    lengths = [_quantile(INPUT_QUANTILES, share) for share in random.random(requests)]
    continues = random.random(requests) < CONTINUE_SHARE
    thinks = random.lognormal(np.log(THINK_MEDIAN_S), THINK_SIGMA, requests)
    scores = random.standard_normal(requests)

    fresh_ids = count(1)
    waiting: list[tuple[float, _Session]] = []
    open_sessions: list[_Session] = []
    made: list[TraceRequest] = []
    for number in range(requests):
        arrival_s, input_tokens, score = float(arrivals[number]), lengths[number], float(scores[number])
        while waiting and waiting[0][0] <= arrival_s:
            insort(open_sessions, heappop(waiting)[1])
        session = _take(open_sessions, input_tokens, arrival_s) if continues[number] else None
        inherited = session.block_ids if session else (0,)
        if session:
            score = ANSWER_CORRELATION * session.answer_score + (1 - ANSWER_CORRELATION**2) ** 0.5 * score
        fresh = blocks_in(input_tokens) - len(inherited)
        block_ids = inherited + tuple(next(fresh_ids) for _ in range(fresh))
        made.append(
            TraceRequest(
                arrival_s=arrival_s,
                input_tokens=input_tokens,
                output_tokens=_quantile(OUTPUT_QUANTILES, _NORMAL.cdf(score)),
                block_ids=block_ids,
            )
        )
        ready_s = arrival_s + float(thinks[number])
        full_blocks = block_ids[: input_tokens // TRACE_BLOCK_TOKENS]
        heappush(waiting, (ready_s, _Session(input_tokens, number, full_blocks, score, ready_s + PATIENCE_S)))
    return Trace(
        source=f"built-in generator (seed {seed})",
        format=FORMAT,
        requests=tuple(made),
        assumptions=(
            "synthetic: lengths, rate and reusable share fitted to Mooncake's conversation trace",
            "Poisson arrivals; each session's next prompt continues its last one",
        ),
    )


def _take(sessions: list[_Session], input_tokens: int, now_s: float) -> _Session | None:
    """Remove and return the open session whose last prompt is the longest below this length."""
    position = bisect_right(sessions, (input_tokens,))
    while position > 0:
        position -= 1
        session = sessions.pop(position)
        if session.closes_s > now_s:
            return session
    return None


def _quantile(knots: Sequence[tuple[float, int]], share: float) -> int:
    """The length at a share of the distribution, interpolated between the knots on a logarithmic scale."""
    shares = [knot for knot, _ in knots]
    logs = [float(np.log(value)) for _, value in knots]
    return round(float(np.exp(np.interp(share, shares, logs))))
