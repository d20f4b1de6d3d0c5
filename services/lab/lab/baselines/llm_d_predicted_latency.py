"""llm-d's predicted-latency routing: learned TTFT and TPOT, an affinity gate, headroom to the objective."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lab.baselines.common import DEFAULT_PROMISES, Routed, objective_of
from lab.baselines.llm_d import LlmD
from lab.baselines.regression import Matrix, WindowedRidge
from lab.sim.api import Arrival, Route
from tokenfleet.contracts import policy as contracts
from tokenfleet.contracts.fleet import InstanceRecord

TTFT_WEIGHT = 0.8
TPOT_WEIGHT = 0.2
STRICT_AFFINITY = 0.99
AFFINITY = 0.80
MAX_TTFT_PENALTY_S = 5.0
NEGATIVE_TIER_PROBABILITY = 0.01
RETRAIN_EVERY_S = 10.0

Indices = npt.NDArray[np.intp]


class _Sample(NamedTuple):
    """What was known of a request's instance when it was routed."""

    features: list[float]
    queued: bool
    tpot_slo_s: float | None


class LlmDPredictedLatency(LlmD):
    """Least positive headroom to the objective, drawn, among instances that hold the prompt and can meet it.

    Definition: llm-d-router ebab687, `predictedlatency` and `scorer/latency`; llm-d-latency-predictor 04e44cd. Headroom
    is objective less prediction for TTFT and TPOT, the TPOT objective being the tightest of this request's and
    those running there. Steps: affinity gate at 0.99; keep the instances with both headrooms positive (with
    probability 0.01 the others instead); affinity gate at 0.80; score 0.8 and 0.2 times the headrooms normalised
    over the candidates (one without range gives its weight to the other), the *least* headroom being best (the
    default strategy, to pack; `most_headroom=True` is the other, which prefers the most); draw with the scores as weights. A gate keeps the instances whose matched share reaches
    it unless the best of them is predicted to be over 5 s later than the best of the others. With no positive headroom:
    idle instances, else those that miss TPOT only, else TTFT only, else both, closest to the objective best. Without
    predictions yet: KV, queue and prefix scores with weight 1 each.

    Holes: XGBoost is replaced by ridge regression (`regression`) over the published features, with
    squares and products added for what trees would find (attention grows with the square of the input); retrained
    every 10 s (its helm chart) on the last 5,000 requests instead of stratified windows. TPOT is learned from each
    request's mean, with the features at routing. An absent objective is zero, as there: the fastest instance wins.
    """

    def __init__(
        self, seed: int, promises: contracts.Policy = DEFAULT_PROMISES, *, most_headroom: bool = False
    ) -> None:
        super().__init__(seed)
        self._promises = promises
        self._most_headroom = most_headroom
        self._ttft = WindowedRidge()
        self._tpot = WindowedRidge()
        self._trained_s = 0.0
        self._samples: dict[str, _Sample] = {}
        self._tpot_slos: dict[str, Counter[float]] = {}
        self._share: dict[str, float] = {}

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        share = self._share = self.prefix_shares(arrival)
        if now_s - self._trained_s >= RETRAIN_EVERY_S:
            self._trained_s = now_s
            self._ttft.fit()
            self._tpot.fit()
        if not (self._ttft.ready and self._tpot.ready):
            scores = self.scores(usable, share, 1.0, 1.0, 1.0)
            return self.least(usable, lambda name: -scores[name])
        x = np.array([self._features(arrival, name) for name in usable])
        queued = np.array([self.loads[name].waiting > 0 for name in usable])
        ttft_s, tpot_s = self._ttft.predict(x, queued), self._tpot.predict(x, queued)
        objective = objective_of(arrival.spec, self._promises)
        tpot_slos = np.array([self._tightest_tpot_s(name, objective.tpot_s) for name in usable])
        ttft_room = (objective.ttft_s or 0.0) - ttft_s
        tpot_room = tpot_slos - tpot_s
        shares = np.array([share.get(name, 0.0) for name in usable])

        kept = gate(np.arange(len(usable)), shares, ttft_s, STRICT_AFFINITY)
        kept = self._tier(kept, (ttft_room > 0) & (tpot_room > 0))
        kept = gate(kept, shares, ttft_s, AFFINITY)
        idle = np.array([self.loads[name].requests == 0 for name in usable])
        kept, scores = headroom_scores(kept, ttft_room, tpot_room, idle, most=self._most_headroom)
        return usable[self._draw(kept, scores)]

    def _tier(self, kept: Indices, positive: npt.NDArray[np.bool_]) -> Indices:
        good, bad = kept[positive[kept]], kept[~positive[kept]]
        if not len(good) or not len(bad):
            return kept
        return bad if self.random.random() < NEGATIVE_TIER_PROBABILITY else good

    def _draw(self, kept: Indices, scores: Matrix) -> int:
        if len(kept) == 1:
            return int(kept[0])
        weights = scores.tolist() if scores.any() else [1.0] * len(kept)
        return int(self.random.choices(kept.tolist(), weights)[0])

    def _features(self, arrival: Arrival, name: str) -> list[float]:
        load = self.loads[name]
        tokens = arrival.spec.input_tokens
        share = self._share.get(name, 0.0)
        effective = tokens * (1 - share)
        ahead = load.pending_tokens
        return [
            load.kv_usage,
            tokens,
            load.waiting,
            load.running,
            ahead,
            load.decoding_tokens,
            share,
            effective,
            effective * tokens,
            ahead * load.running,
            effective * load.running,
        ]

    def _tightest_tpot_s(self, name: str, own_s: float | None) -> float:
        return min([own_s or 0.0, *self._tpot_slos[name]])

    def uncached_tokens(self, arrival: Arrival, instance: str) -> int:
        return round(arrival.spec.input_tokens * (1 - self._share.get(instance, 0.0)))

    def route(
        self, arrival: Arrival, instance: str, now_s: float, predicted_ttft_s: float | None = None
    ) -> Route:
        features, waiting = self._features(arrival, instance), self.loads[instance].waiting
        slo_s = objective_of(arrival.spec, self._promises).tpot_s
        if slo_s is not None:
            self._tpot_slos[instance][slo_s] += 1
        self._samples[arrival.request_id] = _Sample(features, waiting > 0, slo_s)
        return super().route(arrival, instance, now_s, predicted_ttft_s)

    def prefilled(self, routed: Routed, now_s: float) -> None:
        sample = self._samples[routed.request_id]
        self._ttft.add(sample.features, sample.queued, now_s - routed.routed_s)

    def finished(self, routed: Routed, output_tokens: int, now_s: float) -> None:
        sample = self._samples.pop(routed.request_id)
        if sample.tpot_slo_s is not None:
            slos = self._tpot_slos[routed.instance]
            slos[sample.tpot_slo_s] -= 1
            if not slos[sample.tpot_slo_s]:
                del slos[sample.tpot_slo_s]
        if routed.first_token_s is not None and output_tokens > 1:
            tpot_s = (now_s - routed.first_token_s) / (output_tokens - 1)
            self._tpot.add(sample.features, sample.queued, tpot_s)

    def appeared(self, record: InstanceRecord) -> None:
        super().appeared(record)
        self._tpot_slos[record.instance] = Counter()

    def vanished(self, record: InstanceRecord) -> None:
        super().vanished(record)
        del self._tpot_slos[record.instance]


def gate(kept: Indices, shares: Matrix, ttft_s: Matrix, threshold: float) -> Indices:
    """The affinity gate: those who hold enough of the prompt, unless waiting for them costs too much."""
    sticky = shares[kept] >= threshold
    if not sticky.any() or sticky.all():
        return kept
    penalty_s = ttft_s[kept[sticky]].min() - ttft_s[kept[~sticky]].min()
    return kept if penalty_s > MAX_TTFT_PENALTY_S else kept[sticky]


def headroom_scores(
    kept: Indices,
    ttft_room: Matrix,
    tpot_room: Matrix,
    idle: npt.NDArray[np.bool_],
    *,
    most: bool = False,
) -> tuple[Indices, Matrix]:
    """The candidates left and their scores, by headroom: least (or most) positive, else least negative."""
    ttft_ok, tpot_ok = ttft_room[kept] > 0, tpot_room[kept] > 0
    positive = kept[ttft_ok & tpot_ok]
    if len(positive) and most:
        return positive, _closeness(-ttft_room[positive], -tpot_room[positive])
    for group in (
        positive,
        kept[idle[kept]],
        kept[ttft_ok & ~tpot_ok],
        kept[~ttft_ok & tpot_ok],
        kept,
    ):
        if len(group):
            return group, _closeness(np.abs(ttft_room[group]), np.abs(tpot_room[group]))
    raise ValueError("No candidates to score: a router asks only with usable instances")


def _closeness(ttft_room: Matrix, tpot_room: Matrix) -> Matrix:
    """1 for the one closest to its objective, 0 for the farthest."""
    weighted = np.zeros(len(ttft_room))
    weight = 0.0
    for room, share in ((ttft_room, TTFT_WEIGHT), (tpot_room, TPOT_WEIGHT)):
        spread = room.max() - room.min()
        if spread > 0:
            weighted += share * (room - room.min()) / spread
            weight += share
    return 1 - weighted / weight if weight else np.ones(len(ttft_room))
