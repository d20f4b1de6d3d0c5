"""Where to write a line's name: beside the line, clear of the other lines and labels."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
GAP = 6.0


def beside_line(
    line: Points, size: tuple[float, float], obstacles: Points, taken: Sequence[Points], area: Points
) -> tuple[float, float]:
    """The lower left corner for a label of `size` beside one of the line's points, in pixels.

    `obstacles` are points of all lines, `taken` the boxes of labels already placed and `area` the plot's box, each
    box as ((left, bottom), (right, top)). Of the places at the points, left or right of them, above or below, the
    one that covers the fewest obstacles wins, the first of those that do; one that leaves the area or covers a
    label is taken only if there is no other.
    """
    width, height = size
    best, best_cost = (0.0, 0.0), float("inf")
    for x, y in line:
        for left, bottom in (
            (x - width - GAP, y - height / 2),
            (x + GAP, y - height / 2),
            (x - width - GAP, y + GAP / 2),
            (x + GAP, y - height - GAP / 2),
        ):
            box = np.array([[left, bottom], [left + width, bottom + height]])
            cost = _covered(box, obstacles)
            cost += 1000.0 * sum(_overlap(box, other) for other in taken)
            if (box[0] < area[0]).any() or (box[1] > area[1]).any():
                cost += 1000.0
            if cost < best_cost:
                best, best_cost = (float(left), float(bottom)), cost
    return best


def stacked(positions: Sequence[float], height: float, low: float, high: float) -> list[float]:
    """Heights near `positions`, in the same order, at least `height` apart and within low to high if they fit."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = dict(zip(order, (positions[i] for i in order), strict=True))
    floor = low
    for i in order:
        placed[i] = floor = max(placed[i], floor)
        floor += height
    ceiling = high
    for i in reversed(order):
        placed[i] = ceiling = min(placed[i], ceiling)
        ceiling -= height
    return [placed[i] for i in range(len(positions))]


def _covered(box: Points, points: Points) -> float:
    inside = (points >= box[0] - 2).all(axis=1) & (points <= box[1] + 2).all(axis=1)
    return float(inside.sum())


def _overlap(box: Points, other: Points) -> bool:
    return bool((box[0] < other[1] + 3).all() and (box[1] > other[0] - 3).all())
