"""What bars are judged by: figures of policies that ran the same scenario."""

from collections.abc import Callable, Mapping

import msgspec

from lab.results.model import PolicyFigures, PolicyResult
from lab.results.writing import ABSENT, Written, percent, whole

OURS = "tokenfleet_no_admission"
"""Whom the bars are about: every request is served, so that latencies are of the same requests for all."""
WITH_ADMISSION = "tokenfleet"
BASELINE = "round_robin"
MOST_TURNED_AWAY = 0.001
"""Share of the offered requests, beyond those that fit nowhere. A policy that refuses more is compared with TokenFleet
as it refuses: percentiles look better without the slowest requests."""

SHOWN_ONLY = frozenset({"mooncake_conductor"})
"""Not a peer where bars ask for a distance to the best one: this is the rule of the least predicted TTFT itself, as a
paper describes it, given each engine's own timing model as its prediction. It is shown there, and counts as a peer
where nobody may be better."""


def _seconds(value: float | None) -> str:
    """Finer than the tables of results: a bar may lie between two hundredths."""
    return ABSENT if value is None else f"{value:.3f} s" if value < 10 else f"{value:,.1f} s"


class Figure(msgspec.Struct, frozen=True):
    """One figure of a policy."""

    label: str
    value: Callable[[PolicyFigures], float | None]
    written: Written
    more_is_better: bool = False


P50 = Figure("TTFT P50", lambda f: f.ttft_s.p50, _seconds)
P95 = Figure("TTFT P95", lambda f: f.ttft_s.p95, _seconds)
ATTAINMENT = Figure("met", lambda f: f.attainment_offered, percent, more_is_better=True)
ATTAINMENT_AFTER_500 = Figure(
    "met after 500",
    lambda f: f.after_500.attainment_offered if f.after_500 else None,
    percent,
    more_is_better=True,
)
GOODPUT = Figure("goodput, tokens/s", lambda f: f.goodput_tokens_per_s, whole, more_is_better=True)
THROUGHPUT = Figure("all output, tokens/s", lambda f: f.output_tokens_per_s, whole, more_is_better=True)
TTFT_ERROR = Figure(
    "TTFT error, median",
    lambda f: f.prediction.ttft.median_ape_after_500 if f.prediction else None,
    percent,
)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What policies made of one scenario, all with the same seeds."""

    policies: Mapping[str, PolicyResult]
    kept: frozenset[str] = frozenset()
    """Policies whose figures come from a run made earlier."""

    @property
    def peers(self) -> dict[str, PolicyResult]:
        """The published policies."""
        return {
            name: result
            for name, result in self.policies.items()
            if name not in (OURS, WITH_ADMISSION) and name != BASELINE
        }

    @property
    def refusing(self) -> list[str]:
        """Peers that turn requests away which others serve: round robin refuses only what fits nowhere."""
        unfit = self.policies[BASELINE].rejected
        return [
            name
            for name, result in self.peers.items()
            if result.rejected - unfit > MOST_TURNED_AWAY * result.offered
        ]

    @property
    def serving(self) -> list[str]:
        """Peers that serve whatever fits."""
        refusing = self.refusing
        return [name for name in self.peers if name not in refusing]


Measurements = Mapping[str, Measured]
"""By scenario."""


class Source(msgspec.Struct, frozen=True):
    """Where a bar comes from: in a word, and in full."""

    name: str
    text: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One bar, and what was measured."""

    scenario: str
    bar: str
    needed: str
    measured: str
    passed: bool
    source: Source
    counted: bool = True
    """Whether missing it fails the whole; otherwise it is only shown."""
