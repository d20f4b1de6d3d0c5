"""A predicted median is a median, and a P90 a P90."""

import random

import pytest

from tokenpilot.policy.calibrate import PRIOR, REMEMBERED, Calibration


def calibrated(median: float, sigma: float, requests: int = 400, seed: int = 1) -> Calibration:
    rng, calibration = random.Random(seed), Calibration()
    for _ in range(requests):
        predicted_s = rng.uniform(0.1, 5.0)
        calibration.learn("queued", predicted_s, predicted_s * median * rng.lognormvariate(0.0, sigma))
    return calibration


def test_before_anything_came_back_predictions_are_right_and_p90_is_half_as_much_again():
    assert Calibration().median_and_p90("idle", 2.0) == (2.0, 3.0)
    assert Calibration().absolute_error("idle") is None


@pytest.mark.parametrize(("median", "sigma"), [(1.0, 0.3), (1.4, 0.5), (0.8, 0.1)])
def test_half_of_what_follows_is_below_the_median_and_nine_of_ten_below_the_p90(median: float, sigma: float):
    calibration, rng = calibrated(median, sigma), random.Random(2)
    follows = [median * rng.lognormvariate(0.0, sigma) for _ in range(2_000)]
    half, most = calibration.median_and_p90("queued", 1.0)
    assert sum(actual <= half for actual in follows) / 2_000 == pytest.approx(0.5, abs=0.08)
    assert sum(actual <= most for actual in follows) / 2_000 == pytest.approx(0.9, abs=0.04)


def test_each_kind_is_off_in_its_own_way():
    calibration = calibrated(2.0, 0.1)
    assert calibration.median_and_p90("queued", 1.0)[0] == pytest.approx(2.0, rel=0.05)
    assert calibration.median_and_p90("kv", 1.0)[0] == 1.0


def test_a_few_requests_move_it_a_little():
    assert 1.0 < calibrated(2.0, 0.01, requests=10).median_and_p90("queued", 1.0)[0] < 1.6


def test_a_change_is_followed_once_the_old_ones_are_forgotten():
    calibration = calibrated(2.0, 0.1)
    for _ in range(REMEMBERED):
        calibration.learn("queued", 1.0, 0.5)
    assert calibration.median_and_p90("queued", 1.0)[0] == pytest.approx(0.5, rel=0.05)


def test_the_error_is_what_remains_after_calibration():
    bias_only = calibrated(2.0, 0.001).absolute_error("queued")
    noisy = calibrated(1.0, 0.3).absolute_error("queued")
    assert bias_only is not None and bias_only[0] < 0.03
    assert noisy is not None and 0.1 < noisy[0] < 0.3 < noisy[1]


@pytest.mark.parametrize(("predicted_s", "actual_s"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_times_that_cannot_be_teach_nothing(predicted_s: float, actual_s: float):
    calibration = Calibration()
    calibration.learn("idle", predicted_s, actual_s)
    assert calibration.absolute_error("idle") is None


def test_another_process_goes_on_from_what_was_learned():
    first, second = calibrated(1.4, 0.5), Calibration()
    second.restore({**first.quantiles(), "of a later version": (9.0, 9.0)})
    assert second.quantiles() == first.quantiles()


def test_and_does_not_forget_it_with_the_first_requests_of_its_own():
    calibration = Calibration()
    calibration.restore({"queued": (2.0, 3.0)})
    for _ in range(PRIOR):
        calibration.learn("queued", 1.0, 2.0)
    assert calibration.median_and_p90("queued", 1.0)[0] == pytest.approx(2.0)
