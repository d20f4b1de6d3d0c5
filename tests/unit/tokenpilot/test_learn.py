"""How fast an engine really is, learned from what its work took."""

import random

import pytest

from tokenfleet.contracts.latency import Factors
from tokenfleet.load import Observation
from tokenpilot.policy.learn import GREATEST_FACTOR, SpeedLearner


class Engine:
    """Takes so many seconds for each that its profile says, give or take some noise."""

    def __init__(self, prefill: float, step: float, *, name: str = "a", noise: float = 0.05) -> None:
        self.name, self.prefill, self.step, self.noise = name, prefill, step, noise
        self._rng = random.Random(name)

    def works(self) -> Observation:
        """A prompt or an answer of some length."""
        rng = self._rng
        kind = rng.choice(["prefill", "decode"])
        prefill_s = rng.lognormvariate(-1.5, 1.0) if kind == "prefill" else rng.uniform(0.0, 1.0)
        step_s = rng.uniform(0.015, 0.2) if kind == "prefill" else rng.uniform(0.5, 10.0)
        measured_s = (self.prefill * prefill_s + self.step * step_s) * rng.lognormvariate(0.0, self.noise)
        return Observation(self.name, kind, measured_s, prefill_s, step_s)


def taught(engine: Engine, observations: int, learner: SpeedLearner | None = None) -> SpeedLearner:
    learner = learner or SpeedLearner()
    learner.joined(engine.name, "gpu")
    for _ in range(observations):
        learner.observe(engine.works())
    return learner


def assert_near(factors: Factors, engine: Engine, rel: float = 0.05) -> None:
    assert factors.prefill == pytest.approx(engine.prefill, rel=rel)
    assert factors.step == pytest.approx(engine.step, rel=rel)


def test_an_engine_nobody_has_seen_is_as_its_profile_says():
    assert SpeedLearner().joined("a", "gpu") == Factors(prefill=1.0, step=1.0, observations=0)


@pytest.mark.parametrize(("prefill", "step"), [(1.15, 0.9), (0.85, 1.1), (1.3, 1.3), (1.0, 1.0)])
def test_after_40_observations_both_speeds_are_known_within_5_percent(prefill: float, step: float):
    engine = Engine(prefill, step)
    assert_near(taught(engine, 40).factors("a"), engine)


@pytest.mark.parametrize("drift", [1.5, 1 / 1.5])
def test_a_drift_by_half_is_followed_within_60_observations(drift: float):
    engine = Engine(1.0, 1.0)
    learner = taught(engine, 200)
    engine.prefill = engine.step = drift
    assert_near(taught(engine, 60, learner).factors("a"), engine, rel=0.15)
    assert_near(taught(engine, 90, learner).factors("a"), engine, rel=0.06)


def test_one_outlier_changes_little():
    learner = taught(Engine(1.0, 1.0), 40)
    before = learner.factors("a")
    after = learner.observe(Observation("a", "prefill", 60.0, 0.5, 0.1))
    assert after is not None and after.prefill == pytest.approx(before.prefill, rel=0.05)


def test_however_wrong_the_clock_factors_stay_bounded():
    learner = SpeedLearner()
    learner.joined("a", "gpu")
    for _ in range(500):
        learner.observe(Observation("a", "prefill", 1e6, 0.5, 0.1))
    factors = learner.factors("a")
    assert factors.prefill <= GREATEST_FACTOR and factors.step <= GREATEST_FACTOR


@pytest.mark.parametrize(
    "nothing",
    [
        Observation("stranger", "prefill", 1.0, 0.5, 0.1),
        Observation("a", "prefill", 0.0, 0.5, 0.1),
        Observation("a", "prefill", 0.01, 0.0, 0.001),
    ],
    ids=["of an unknown engine", "in no time", "too short to tell"],
)
def test_there_is_nothing_to_learn_from_an_observation(nothing: Observation):
    learner = SpeedLearner()
    learner.joined("a", "gpu")
    assert learner.observe(nothing) is None
    assert learner.factors("a") == Factors()


class TestKinds:
    def test_a_new_instance_starts_at_the_mean_of_its_kind_and_of_no_other(self):
        learner = SpeedLearner()
        for name in ("a", "b", "c"):
            taught(Engine(1.2, 0.9, name=name), 60, learner)
        assert_near(learner.joined("new", "gpu"), Engine(1.2, 0.9))
        assert learner.joined("other", "other-gpu") == Factors()

    def test_an_instance_that_differs_from_its_kind_is_known_apart(self):
        learner = SpeedLearner()
        engines = [Engine(1.0, 1.0, name="b"), Engine(1.0, 1.0, name="c"), Engine(1.4, 1.2, name="slow")]
        for engine in engines:
            taught(engine, 60, learner)
        assert_near(learner.factors("slow"), engines[-1], rel=0.08)
        assert_near(learner.factors("b"), engines[0])

    def test_another_profile_under_the_same_name_starts_anew(self):
        learner = taught(Engine(1.3, 1.3), 60)
        assert learner.joined("a", "other-gpu") == Factors()
        assert learner.joined("a", "other-gpu") == learner.factors("a")


def test_while_the_profile_alone_predicts_better_it_is_used():
    learner = taught(Engine(2.0, 2.0, noise=0.0), 100)
    assert learner.factors("a").prefill > 1.8
    healthy = Engine(1.0, 1.0, noise=0.0)
    learned: list[Factors] = []
    for _ in range(40):
        learner.observe(healthy.works())
        learned.append(learner.factors("a"))
    assert any((each.prefill, each.step) == (1.0, 1.0) for each in learned[:-1])


class TestHandingOver:
    def test_another_process_goes_on_from_what_was_learned(self):
        engine = Engine(1.15, 0.9)
        first = taught(engine, 60)
        second = SpeedLearner()
        second.restore([("a", "gpu", first.factors("a"))])
        assert second.joined("a", "gpu") == first.factors("a")
        assert_near(taught(engine, 1, second).factors("a"), engine)

    def test_what_it_took_up_counts_as_its_latest_observations(self):
        second = SpeedLearner()
        second.restore([("a", "gpu", Factors(prefill=1.5, step=1.5, observations=2))])
        engine = Engine(1.0, 1.0)
        assert_near(taught(engine, 40, second).factors("a"), engine)

    def test_what_an_instance_that_left_had_taught_of_its_kind_stays(self):
        learner = taught(Engine(1.2, 1.2), 60)
        learner.left("a")
        assert "a" not in learner.all()
        assert learner.joined("new", "gpu").prefill == pytest.approx(1.2, rel=0.1)
