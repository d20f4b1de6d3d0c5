"""Labels keep clear of each other and of the lines where there is room."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.results.labels import beside_line, stacked

AREA = np.array([[0.0, 0.0], [400.0, 200.0]])


@given(st.lists(st.floats(-50, 250), min_size=1, max_size=8))
def test_stacked_labels_keep_their_order_their_distance_and_the_area(positions: list[float]) -> None:
    placed = stacked(positions, 13, 0, 200)
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    heights = [placed[i] for i in order]
    assert all(upper - lower >= 13 - 1e-6 for lower, upper in pairwise(heights))
    assert min(heights) >= -1e-6
    assert max(heights) <= 200 + 1e-6


def test_labels_that_do_not_touch_stay_where_their_lines_end() -> None:
    assert stacked([100, 20], 13, 0, 200) == [100, 20]


def test_a_label_goes_to_the_free_side_of_its_line() -> None:
    up = np.linspace(5, 195, 50)
    line = np.column_stack([np.full(50, 150.0), up])
    crowd = np.column_stack([np.repeat(np.arange(155, 300, 4.0), 50), np.tile(up, 37)])
    left, _ = beside_line(line, (60, 12), np.concatenate([line, crowd]), [], AREA)
    assert left + 60 < 150


def test_a_label_does_not_cover_one_already_placed() -> None:
    line = np.column_stack([np.full(50, 200.0), np.linspace(5, 195, 50)])
    first = beside_line(line, (60, 12), line, [], AREA)
    taken = np.array([first, (first[0] + 60, first[1] + 12)])
    second = beside_line(line, (60, 12), line, [taken], AREA)
    apart = abs(second[1] - first[1]) >= 12 or abs(second[0] - first[0]) >= 60
    assert apart
