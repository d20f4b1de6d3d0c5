"""Whole runs: nothing is lost, limits hold, the bound bounds, and the seed decides everything."""

import numpy as np
import pytest
from unit.lab_planning.days import STEPS, WORLD, run, work

from lab.planning.figures import figures, mean
from lab.planning.simulate import PLAN, POLICIES, STATIC, simulate

KNOWN = "plan, forecast known"
GPUS = np.array([model.gpus for _, model in WORLD.pools])


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_asked_for_is_served_or_late_and_nothing_twice(policy: str) -> None:
    done = run(policy)
    assert done.served.sum() + done.late.sum() == pytest.approx(done.asked.sum())
    assert (done.late >= 0).all() and (done.late <= done.asked + 1e-9).all()
    assert (done.served <= done.ready * WORLD.bears + 1e-9).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_no_site_ever_takes_more_gpus_than_it_has(policy: str) -> None:
    taken = (run(policy).running * GPUS).reshape(STEPS, len(WORLD.sites), -1).sum(2)
    assert taken.max() <= WORLD.site_gpus


@pytest.mark.parametrize("policy", POLICIES)
def test_replicas_change_only_by_those_begun_and_stopped(policy: str) -> None:
    done = run(policy)
    assert np.array_equal(np.diff(done.running.sum(1)), (done.begun - done.stopped)[1:])


@pytest.mark.parametrize("seed", range(3))
def test_who_knows_the_demand_is_hardly_ever_later_than_who_forecasts_it(seed: int) -> None:
    known, forecast = (figures(WORLD, run(policy, seed)) for policy in (KNOWN, PLAN))
    assert known.late <= forecast.late + 0.002
    assert known.gpu_hours < forecast.gpu_hours


def test_plans_by_forecasts_are_less_late_than_following_the_load() -> None:
    plan, reactive = (
        mean([figures(WORLD, run(policy, seed)) for seed in range(3)]) for policy in (PLAN, "reactive")
    )
    assert plan.late < reactive.late


def test_only_the_plan_by_forecasts_has_their_errors() -> None:
    errors = {policy: run(policy).forecast for policy in POLICIES}
    of_plan = errors.pop(PLAN)
    assert set(errors.values()) == {None}
    # One for each way after each step but the last: nothing is decided any more after that.
    assert of_plan is not None and of_plan.judged == (STEPS - 1) * len(WORLD.ways)


@pytest.mark.parametrize("policy", ["reactive", PLAN])
def test_the_same_seed_gives_the_same_figures(policy: str) -> None:
    again = figures(WORLD, simulate(WORLD, work(1), policy))
    assert again == figures(WORLD, run(policy, 1)) != figures(WORLD, run(policy, 2))


def test_progress_ends_with_all_steps() -> None:
    told: list[int] = []
    simulate(WORLD, work(), STATIC, told.append)
    assert told == sorted(told) and told[-1] == STEPS
