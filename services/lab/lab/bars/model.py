"""What bars are judged by: figures of policies that ran the same scenario."""

from collections.abc import Callable, Mapping

import msgspec

from lab.results.model import PartFigures, PolicyFigures, PolicyResult
from lab.results.writing import ABSENT, Written, percent, whole

OURS = "tokenfleet_no_admission"
"""Whom the bars of routing are about: every request is served, so that latencies are of the same requests for all."""
WITH_ADMISSION = "tokenfleet"
"""Whom the bars of admission are about."""
BY_ITSELF = "tokenfleet_stay_local"
"""Each site for itself, with TokenFleet's choice of the instance: whom pooling sites is compared with."""
BASELINE = "round_robin"
MOST_TURNED_AWAY = 0.001
"""Share of the offered requests, beyond those that fit nowhere. A policy that refuses more is compared with TokenFleet
as it refuses: percentiles look better without the slowest requests."""

PEERS = (
    "llm_d",
    "llm_d_predicted_latency_most",
    "dynamo_kv",
    "smg_least_load",
    "smg_cache_aware_shortest_queue",
    "preble_e2",
    "mooncake_conductor",
)
"""Those among whom the best of every figure of routing is found in every scenario; the others are far behind."""

SHOWN_ONLY = frozenset({"mooncake_conductor"})
"""Not a peer where bars of routing ask for a distance to the best one: this is the rule of the least predicted TTFT itself, as a
paper describes it, given each engine's own timing model as its prediction. It is shown there, and counts as a peer
where nobody may be better."""


WITHOUT_ADMISSION = ("round_robin", "least_requests", "llm_d", "dynamo_kv", "smg_least_load")
"""Peers that serve whatever comes, the best of them under overload among them."""
REGION_LOCAL = "region_local"
SITE_PEERS = (REGION_LOCAL, "round_robin", "global_least_load", "skywalker", "gorgo", "gorgo2")
"""Those that choose among sites, or take all sites for one pool."""
OWN_ADMISSION = ("llm_d_flow_control", "mooncake_conductor")
"""Peers that hold or refuse by rules of their own."""


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
ADMITTED = Figure("met, of admitted", lambda f: f.attainment_admitted, percent, more_is_better=True)
GOOD_SHARE = Figure(
    "goodput, of all output",
    lambda f: f.goodput_tokens_per_s / f.output_tokens_per_s if f.output_tokens_per_s else None,
    percent,
    more_is_better=True,
)
LEAST_LENGTH = Figure(
    "met, in the worst length class", lambda f: _least_of(f.input_lengths), percent, more_is_better=True
)
LEAST_TENANT = Figure(
    "met, of the worst tenant's", lambda f: _least_of(f.tenants), percent, more_is_better=True
)
RESIDENCY = Figure("sent where they may not run", lambda f: f.residency_violations, whole)
STARVED = Figure("longest wait of a long context", lambda f: f.starved_s, _seconds)
DEADLINES = Figure(
    "batch lines done by their deadline",
    lambda f: f.batch.deadlines_met if f.batch else None,
    percent,
    more_is_better=True,
)
OTHERS_P95 = Figure(
    "TTFT P95 of the other tenants", lambda f: f.others.ttft_s.p95 if f.others else None, _seconds
)
OTHERS_MET = Figure(
    "met, of the other tenants'",
    lambda f: f.others.attainment_offered if f.others else None,
    percent,
    more_is_better=True,
)
SETTLED = Figure(
    "last change of a knob after a step",
    lambda f: f.steadiness.settled_s if f.steadiness else None,
    _seconds,
)
TURNED_BACK = Figure(
    "a knob turned back between two steps",
    lambda f: f.steadiness.turned_back if f.steadiness else None,
    lambda times: ABSENT if times is None else f"{times:g} times",
)
TTFT_ERROR = Figure(
    "TTFT error, median",
    lambda f: f.prediction.ttft.median_ape_after_500 if f.prediction else None,
    percent,
)


def class_met(name: str) -> Figure:
    """Attainment of all offered requests of a class."""
    return Figure(
        f"met, class {name}",
        lambda f: f.classes[name].attainment_offered if name in f.classes else None,
        percent,
        more_is_better=True,
    )


def _least_of(parts: Mapping[str, PartFigures]) -> float | None:
    met = [part.attainment_offered for part in parts.values() if part.attainment_offered is not None]
    return min(met, default=None)


class Needed(msgspec.Struct, frozen=True):
    """Who has to run a scenario for a bar."""

    ours: frozenset[str]
    peers: frozenset[str] = frozenset()

    def __or__(self, other: "Needed") -> "Needed":
        return Needed(self.ours | other.ours, self.peers | other.peers)


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
    policy: str = OURS
    """Which of TokenFleet's own it is about."""
    counted: bool = True
    """Whether missing it fails the whole; otherwise it is only shown."""
