"""The JSON of one lab run: what `tokenfleet lab run SCENARIO --json FILE` writes and the reports read.

Figures are medians over the run's seeds, with the least and the greatest beside them. Times are virtual engine
seconds. Unknown keys are ignored, so a run may say more than the reports show.
"""

import msgspec

from tokenfleet.contracts.ledger import Percentiles

OURS = "tokenfleet"
LENGTHS = {"4k": "up to 4k", "16k": "4k to 16k", "64k": "16k to 64k", "longer": "above 64k"}
"""Input-length classes: the key, and the prompt tokens it stands for."""

Point = tuple[float, float]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's figures of one group of requests. A median over seeds need not be whole."""

    offered: float
    completed: float
    rejected: float
    timed_out: float
    cancelled: float
    failed: float
    output_tokens_per_s: float
    goodput_tokens_per_s: float
    attainment_offered: float | None
    attainment_admitted: float | None
    prefix_reuse: float | None
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    rejected_by_reason: dict[str, float] = {}


class PartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one input-length class, of a tenant, or of another part of the requests.

    Some are missing in runs of before they were kept.
    """

    offered: float
    rejected: float
    attainment_offered: float | None
    ttft_s: Percentiles
    attainment_admitted: float | None = None
    output_tokens_per_s: float | None = None
    goodput_tokens_per_s: float | None = None
    rejected_by_reason: dict[str, float] = {}


class BatchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What batch lines got, as `lab.sim.batch` defines it."""

    lines: float
    deadlines: float
    deadlines_met: float | None
    """The share of the lines with a deadline that were done by then."""
    window_s: float
    """While there were lines enough to fill a pool; work is counted in it."""
    output_tokens_per_s: float
    work_per_s: float
    """Engine seconds of work per second."""
    others_work_per_s: float


class Steadiness(msgspec.Struct, frozen=True, kw_only=True):
    """How a policy moved its own knobs, as `lab.sim.steadiness` defines it."""

    changes: float
    turned_back: float
    settled_s: float | None


class PredictionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions were off, as `lab.sim.prediction` defines it: shares of what it turned out to be."""

    n: float = 0
    median_ape: float | None = None
    p90_ape: float | None = None
    median_ape_after_500: float | None = None
    p90_ape_after_500: float | None = None
    covered_p50: float | None = None
    covered_p90: float | None = None
    input_lengths: dict[str, "PredictionFigures"] = {}


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Of the two latencies that a policy may predict."""

    ttft: PredictionFigures = PredictionFigures()
    tpot: PredictionFigures = PredictionFigures()


class PolicyFigures(Figures, frozen=True, kw_only=True):
    """One policy's figures over all requests, per class and per input length."""

    classes: dict[str, Figures] = {}
    input_lengths: dict[str, PartFigures] = {}
    after_500: PartFigures | None = None
    """Of the requests that arrived after the first 500, by when a policy that learns should have."""
    tenants: dict[str, PartFigures] = {}
    """Empty where there is only one, or there are too many to tell apart."""
    others: PartFigures | None = None
    """All but the tenant that floods."""
    starved_s: float | None = None
    """The longest wait of any long-context request."""
    residency_violations: float | None = None
    """Decisions to run a request where its tenant does not allow it; None in runs of before this was kept."""
    batch: BatchFigures | None = None
    steadiness: Steadiness | None = None
    prediction: Prediction | None = None
    """None of a policy that predicts nothing, and in runs of before this was kept."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """What the plots draw, from the first seed. Runs kept for the docs may have thinned or dropped it."""

    ttft_cdf: tuple[Point, ...] = ()
    """TTFT in seconds, share of the answered requests at or below it."""
    goodput_over_time: tuple[Point, ...] = ()
    """Seconds from the start, goodput tokens per second."""
    queue_length_over_time: tuple[Point, ...] = ()
    """Seconds from the start, waiting requests per instance (mean over instances)."""
    per_instance_load: dict[str, float] = {}
    """Share of the run each instance was busy."""
    adjustments: tuple[tuple[float, str, float, float], ...] = ()
    """Seconds from the start, the knob the policy moved, its value before and after."""


class PolicyResult(PolicyFigures, frozen=True, kw_only=True):
    """What one policy made of the scenario."""

    min: PolicyFigures | None = None
    max: PolicyFigures | None = None
    series: Series = Series()
    citation: str = ""
    """Where the policy is published, with the constants used."""


class BoundFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What no policy can beat. `ttft_s`: empty instances, infinite shared cache; goodput: clairvoyant."""

    ttft_s: Percentiles
    goodput_tokens_per_s: float
    attainment_offered: float | None = None


class Bound(BoundFigures, frozen=True, kw_only=True):
    """The bound, and what was relaxed to compute it."""

    min: BoundFigures | None = None
    max: BoundFigures | None = None
    relaxation: str = ""
    series: Series = Series()


class HowRun(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was made: enough to make it again."""

    seeds: int
    """How many; each policy ran once with each."""
    command: str
    """The command line that reproduces the file."""
    trace: str
    speed: float
    description: str = ""
    """The scenario in a sentence or two, as its file says it."""
    requests: int | None = None
    assumptions: tuple[str, ...] = ()
    """What loading the trace assumed."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario, every policy that ran it, and the bound."""

    scenario: str
    bound: Bound
    policies: dict[str, PolicyResult]
    run: HowRun

    @property
    def ours(self) -> PolicyResult:
        """TokenFleet's. KeyError where it did not run."""
        return self.policies[OURS]

    @property
    def classes(self) -> dict[str, float]:
        """The classes of the run's requests, and how many were offered: the same whatever the policy."""
        return {name: figures.offered for name, figures in self._any.classes.items() if figures.offered}

    @property
    def tenants(self) -> dict[str, float]:
        """The tenants of the run, and how many requests each offered; empty where there is only one."""
        return {name: figures.offered for name, figures in self._any.tenants.items()}

    @property
    def input_lengths(self) -> dict[str, float]:
        """The input-length classes of the run's requests, and how many were offered."""
        lengths = self._any.input_lengths
        return {key: lengths[key].offered for key in LENGTHS if key in lengths and lengths[key].offered}

    @property
    def _any(self) -> PolicyResult:
        return next(iter(self.policies.values()))

    @property
    def baselines(self) -> dict[str, PolicyResult]:
        """The policies that are not TokenFleet's or a variant of it."""
        return {name: result for name, result in self.policies.items() if not is_ours(name)}


def compares(run: Run) -> bool:
    """Whether TokenFleet and some baseline ran; a run of a few chosen policies may lack either."""
    return OURS in run.policies and bool(run.baselines)


def is_ours(name: str) -> bool:
    """Whether a policy is TokenFleet's own or a variant of it."""
    return name == OURS or name.startswith(f"{OURS}_")


PROPER = {
    "dynamo": "Dynamo",
    "e2": "E2",
    "gorgo": "GORGO",
    "kv": "KV",
    "llmd": "llm-d",
    "mooncake": "Mooncake",
    "preble": "Preble",
    "sglang": "SGLang",
    "skywalker": "SkyWalker",
    "smg": "SMG",
    "tokenfleet": "TokenFleet",
    "ttft": "TTFT",
    "vllm": "vLLM",
}


def title(name: str) -> str:
    """A policy's name as people read it."""
    return " ".join(PROPER.get(word, word) for word in name.replace("llm_d", "llmd").split("_"))
