"""The work that comes is drawn from its seed, with days, bursts and weekends as said."""

import numpy as np
import pytest

from lab.planning.offered import offered
from lab.planning.world import DAY_STEPS, World

WORLD = World()


def test_the_same_seed_asks_for_the_same_work_and_another_for_other() -> None:
    first, again, other = (offered(WORLD, 300, seed) for seed in (3, 3, 4))
    assert np.array_equal(first.work, again.work) and np.array_equal(first.in_burst, again.in_burst)
    assert not np.array_equal(first.work, other.work)


def test_over_days_each_model_is_asked_for_as_much_as_said_outside_bursts() -> None:
    many = offered(WORLD, 20 * DAY_STEPS, seed=1)
    for place, (_, model) in enumerate(WORLD.pools):
        quiet = many.work[~many.in_burst[:, place], place]
        assert quiet.mean() == pytest.approx(model.mean_work, rel=0.05)


def test_sites_have_their_peaks_a_third_of_a_day_apart() -> None:
    by_step = offered(WORLD, 30 * DAY_STEPS, seed=2).work[: 30 * DAY_STEPS, ::2]
    hours = by_step.reshape(30, 24, -1, by_step.shape[1]).mean((0, 2))
    apart = np.abs(hours.argmax(0) - np.array([0, 8, 16])) % 24
    assert (np.minimum(apart, 24 - apart) <= 2).all()


def test_there_are_a_few_bursts_a_day_and_they_are_short() -> None:
    share = offered(WORLD, 30 * DAY_STEPS, seed=5).in_burst.mean()
    # Three a day of 20 minutes.
    assert share == pytest.approx(3 * 20 / 1440, rel=0.25)


def test_less_is_asked_for_on_days_of_a_weekend_only() -> None:
    usual, dipped = (offered(WORLD, 7 * DAY_STEPS, 0, weekend_dip=dip).work for dip in (0.0, 0.4))
    weekend = slice(5 * DAY_STEPS, 7 * DAY_STEPS)
    assert np.allclose(dipped[weekend], 0.6 * usual[weekend])
    assert np.array_equal(dipped[: 5 * DAY_STEPS], usual[: 5 * DAY_STEPS])
