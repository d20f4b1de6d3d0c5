"""How fast each engine really is, learned from what its work took. Pure.

An engine's work takes `prefill_factor * prefill_s + step_factor * step_s`, the two parts as its profile says.
The factors of an instance are a ridge regression on its latest observations, drawn towards the mean of the
instances with the same profile, and that mean towards 1: a new instance predicts as well as its kind does, and
a fleet nobody has seen yet as its profiles say. Errors are relative, so that long prompts do not drown short
ones. Where the profile alone predicted better lately, the profile is used.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tokenfleet.contracts.latency import Factors
from tokenfleet.load import Observation

MEMORY = 40.0
"""Observations of each kind that count: each one weighs `1 - 1/MEMORY` of the one after it."""
OWN_PRIOR = 4.0
"""Observations that the mean of its kind counts for in an instance's factors."""
KIND_REFRESH = 8
KIND_PRIOR = 8.0
"""Observations that the profile counts for in that mean."""
OUTLIER = 1.5
"""An observation further off than this factor is taken as that far off: something else held the engine up."""
LEAST_FACTOR, GREATEST_FACTOR = 0.2, 10.0
LEAST_SHARE_S = 0.02
"""An observation shorter than this says more of iteration boundaries than of speed."""
WORSE = 1.1
"""The learned form is set aside while its error is this many times the profile's."""

_KEEP = 1.0 - 1.0 / MEMORY


@dataclass(slots=True)
class _Instance:
    """Sums over observations, each divided by what was expected of it: `pp` is prefill share times itself, ..."""

    profile: str
    prefill: float = 1.0
    step: float = 1.0
    pp: float = 0.0
    ps: float = 0.0
    ss: float = 0.0
    py: float = 0.0
    sy: float = 0.0
    weight: float = 0.0
    learned_error: float = 0.0
    profile_error: float = 0.0
    observations: int = 0


class SpeedLearner:
    """The factors of all instances of a pool."""

    def __init__(self) -> None:
        self._instances: dict[str, _Instance] = {}
        self._kinds: dict[str, tuple[float, float]] = {}

    def joined(self, instance: str, profile: str) -> Factors:
        """An instance is there; its factors until it is observed."""
        known = self._instances.get(instance)
        if known is None or known.profile != profile:
            known = self._instances[instance] = _Instance(profile, *self._kind(profile))
        return self.factors(instance)

    def left(self, instance: str) -> None:
        """An instance is gone. What it taught of its kind stays until others teach better."""
        self._instances.pop(instance, None)

    def observe(self, observation: Observation) -> Factors | None:
        """Learn from one observation; the instance's new factors, or None when there is nothing to learn."""
        known = self._instances.get(observation.instance)
        profile_s = observation.prefill_s + observation.step_s
        if known is None or profile_s < LEAST_SHARE_S or observation.measured_s <= 0:
            return None
        expected_s = known.prefill * observation.prefill_s + known.step * observation.step_s
        self._judge(known, observation.measured_s, expected_s, profile_s)
        ratio = min(max(observation.measured_s / expected_s, 1.0 / OUTLIER), OUTLIER)
        prefill, step = observation.prefill_s / expected_s, observation.step_s / expected_s
        known.pp = _KEEP * known.pp + prefill * prefill
        known.ps = _KEEP * known.ps + prefill * step
        known.ss = _KEEP * known.ss + step * step
        known.py = _KEEP * known.py + prefill * ratio
        known.sy = _KEEP * known.sy + step * ratio
        known.weight = _KEEP * known.weight + 1.0
        known.observations += 1
        self._solve(known)
        return self.factors(observation.instance)

    def factors(self, instance: str) -> Factors:
        """The factors in force."""
        known = self._instances[instance]
        if known.learned_error > WORSE * known.profile_error and known.observations > MEMORY:
            return Factors(observations=known.observations)
        return Factors(prefill=known.prefill, step=known.step, observations=known.observations)

    def all(self) -> dict[str, Factors]:
        """The factors of every instance."""
        return {instance: self.factors(instance) for instance in self._instances}

    def restore(self, factors: Iterable[tuple[str, str, Factors]]) -> None:
        """Begin from what another process had learned: `(instance, profile, factors)`."""
        for instance, profile, learned in factors:
            # As if the latest observations, of equal parts, had all agreed.
            weight = min(float(learned.observations), MEMORY)
            self._instances[instance] = _Instance(
                profile,
                learned.prefill,
                learned.step,
                pp=weight / 2,
                ss=weight / 2,
                py=weight / 2 * learned.prefill,
                sy=weight / 2 * learned.step,
                weight=weight,
                observations=learned.observations,
            )
            self._kinds[profile] = self._mean(profile)

    def _judge(self, known: _Instance, measured_s: float, expected_s: float, profile_s: float) -> None:
        share = 1.0 / min(known.observations + 1.0, MEMORY)
        learned_error = min(abs(math.log(measured_s / expected_s)), 1.0)
        profile_error = min(abs(math.log(measured_s / profile_s)), 1.0)
        known.learned_error += share * (learned_error - known.learned_error)
        known.profile_error += share * (profile_error - known.profile_error)

    def _solve(self, known: _Instance) -> None:
        """The normal equations of two unknowns, the prior counting as observations of equal parts."""
        kind_prefill, kind_step = self._kind(known.profile)
        prior = OWN_PRIOR / 2
        pp, ss = known.pp + prior, known.ss + prior
        py, sy = known.py + prior * kind_prefill, known.sy + prior * kind_step
        determinant = pp * ss - known.ps * known.ps
        known.prefill = _bounded((ss * py - known.ps * sy) / determinant)
        known.step = _bounded((pp * sy - known.ps * py) / determinant)
        if known.observations % KIND_REFRESH == 0:
            self._kinds[known.profile] = self._mean(known.profile)

    def _kind(self, profile: str) -> tuple[float, float]:
        known = self._kinds.get(profile)
        if known is None:
            known = self._kinds[profile] = self._mean(profile)
        return known

    def _mean(self, profile: str) -> tuple[float, float]:
        prefill = step = weight = KIND_PRIOR
        for known in self._instances.values():
            if known.profile == profile:
                prefill += known.weight * known.prefill
                step += known.weight * known.step
                weight += known.weight
        return prefill / weight, step / weight


def _bounded(factor: float) -> float:
    return min(max(factor, LEAST_FACTOR), GREATEST_FACTOR)
