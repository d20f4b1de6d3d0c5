"""What became of the requests of one run, whoever ran it, and the figures two runs are compared by.

Percentiles are linearly interpolated, over the requests that have the figure. TPOT is the mean over an answer:
`(last token - first token) / (tokens - 1)`, for answers of at least two tokens.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from lab.sim.api import Outcome
from tokenfleet.contracts.policy import ClassObjective

OBJECTIVE = ClassObjective(ttft_s=4.0, tpot_s=0.1)
"""The reference objective: TTFT in proportion above 16,000 input tokens."""


PATIENCE_S = 86_400.0
"""No client gives up: neither Dynamo's replay nor the engine over HTTP knows a deadline."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times are engine seconds since the start of the run."""

    input_tokens: int
    output_tokens: int
    reused_tokens: int
    ttft_s: float | None
    """None: it never got a token."""
    tpot_s: float | None
    ended_s: float

    @property
    def met(self) -> bool:
        """Whether it was answered within the reference objective."""
        if self.ttft_s is None:
            return False
        assert OBJECTIVE.ttft_s is not None
        assert OBJECTIVE.tpot_s is not None
        ttft_s = OBJECTIVE.ttft_s * max(1.0, self.input_tokens / OBJECTIVE.ttft_input_tokens)
        return self.ttft_s <= ttft_s and (self.tpot_s is None or self.tpot_s <= OBJECTIVE.tpot_s)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One run in figures. Times in seconds, rates per second of the run."""

    offered: int
    answered: int
    ttft_p50_s: float
    ttft_p95_s: float
    tpot_p50_s: float
    tpot_p95_s: float
    prefix_reuse: float
    """Of the input tokens of answered requests, those found in the cache when first scheduled."""
    attainment: float
    """Met, of offered."""
    goodput_tokens_per_s: float
    output_tokens_per_s: float


def figures(requests: Sequence[Served]) -> Figures:
    """The figures of a run, of which at least one request had two tokens."""
    answered = [request for request in requests if request.ttft_s is not None]
    duration_s = max(request.ended_s for request in requests)
    ttft_p50_s, ttft_p95_s = _percentiles(r.ttft_s for r in answered if r.ttft_s is not None)
    tpot_p50_s, tpot_p95_s = _percentiles(r.tpot_s for r in answered if r.tpot_s is not None)
    met = [request for request in requests if request.met]
    return Figures(
        offered=len(requests),
        answered=len(answered),
        ttft_p50_s=ttft_p50_s,
        ttft_p95_s=ttft_p95_s,
        tpot_p50_s=tpot_p50_s,
        tpot_p95_s=tpot_p95_s,
        prefix_reuse=sum(r.reused_tokens for r in answered) / sum(r.input_tokens for r in answered),
        attainment=len(met) / len(requests),
        goodput_tokens_per_s=sum(r.output_tokens for r in met) / duration_s,
        output_tokens_per_s=sum(r.output_tokens for r in requests) / duration_s,
    )


def simulated(outcomes: Iterable[Outcome]) -> list[Served]:
    """The requests of one simulation."""
    return [
        Served(
            input_tokens=outcome.arrival.spec.input_tokens,
            output_tokens=outcome.output_tokens,
            reused_tokens=outcome.reused_tokens,
            ttft_s=outcome.ttft_s,
            tpot_s=outcome.tpot_s,
            ended_s=outcome.ended_s,
        )
        for outcome in outcomes
    ]


def _percentiles(values: Iterable[float]) -> tuple[float, float]:
    p50, p95 = np.percentile(list(values), (50, 95))
    return float(p50), float(p95)
