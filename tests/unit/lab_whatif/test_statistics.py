"""Paired differences and their bounds."""

import pytest

from lab.whatif.statistics import paired, share_within, student_t


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423)]
)
def test_students_t_is_as_printed_in_tables(degrees: int, value: float):
    assert student_t(degrees) == pytest.approx(value, abs=5e-5)
    assert share_within(value, degrees) == pytest.approx(0.95, abs=1e-5)


def test_the_interval_is_of_the_pairs_and_not_of_the_columns():
    difference = paired([10.0, 100.0, 1000.0], [11.0, 102.0, 1003.0])
    assert difference is not None
    assert difference.mean == 2.0
    assert difference.low == pytest.approx(2.0 - 4.3027 / 3**0.5, abs=1e-3)
    assert difference.high == pytest.approx(2.0 + 4.3027 / 3**0.5, abs=1e-3)


def test_equal_differences_leave_no_doubt_and_one_pair_gives_no_bounds():
    sure = paired([1.0, 2.0], [2.0, 3.0])
    assert sure is not None and (sure.low, sure.mean, sure.high) == (1.0, 1.0, 1.0)
    single = paired([1.0], [2.0])
    assert single is not None and (single.low, single.high) == (None, None)


def test_a_figure_that_some_run_lacks_has_no_difference():
    assert paired([1.0, None], [2.0, 3.0]) is None
