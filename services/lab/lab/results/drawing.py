"""What the plots are made of: panels, policies' dots and lines, and their names beside them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter

from lab.results import theme
from lab.results.findings import best_baseline
from lab.results.labels import beside_line, stacked
from lab.results.model import OURS, Point, PolicyFigures, PolicyResult, Run, is_ours, title

NARROW_IN, WIDE_IN, HEIGHT_IN = 6.2, 12.6, 3.5
"""Sizes in inches: two narrow plots go beside each other, at the same scale as one wide one."""
PERCENT = FuncFormatter(lambda value, _: f"{value:.0%}".replace("%", " %"))
ROW_IN, DENSE_ROW_IN = 0.25, 0.2
"""Height of a policy's row where policies are listed."""


class Plot(msgspec.Struct, frozen=True):
    """A drawing with its file name, its heading and what it says to those who cannot see it."""

    name: str
    heading: str
    description: str
    drawing: Drawing
    wide: bool = False
    """Whether it wants a row of its own."""

    def svg(self, *, standalone: bool) -> str:
        return theme.svg(self.drawing, self.name, self.description, standalone=standalone)


def line_axes() -> tuple[Drawing, Axes]:
    """One panel for lines."""
    drawing = Drawing(figsize=(NARROW_IN, HEIGHT_IN), layout="constrained")
    return drawing, drawing.add_subplot()


def listing_axes(names: Sequence[str], panels: int, size: tuple[float, float]) -> tuple[Drawing, list[Axes]]:
    """Panels side by side that share one list of policies, the first name at the bottom."""
    drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.04))
    axes = list(np.ravel(drawing.subplots(1, panels, sharey=True)))
    first = axes[0]
    first.set_ylim(-0.7, len(names) - 0.3)
    first.set_yticks(range(len(names)), [title(name) for name in names])
    for label, name in zip(first.get_yticklabels(), names, strict=True):
        label.set_color(theme.OURS if name == OURS else theme.INK)
        label.set_fontweight("bold" if name == OURS else "normal")
    if OURS in names:
        for panel in axes:
            panel.axhline(names.index(OURS), color=theme.OURS, linewidth=14, alpha=0.09, zorder=0)
    return drawing, axes


def draw_dot(
    axes: Axes,
    row: int,
    name: str,
    result: PolicyResult,
    value: Callable[[PolicyFigures], float | None],
    tooltip: str,
    *,
    hollow: bool = False,
) -> None:
    """The median as a dot, and the range over the seeds as a line through it."""
    median = value(result)
    if median is None:
        return
    colour = theme.OURS if is_ours(name) else theme.MUTED
    low, high = result.min and value(result.min), result.max and value(result.max)
    if low is not None and high is not None:
        axes.plot([low, high], [row, row], color=colour, linewidth=2.4, alpha=0.45)
    face = "none" if hollow else colour
    size = 46 if name == OURS else 26
    drawn = axes.scatter([median], [row], s=size, facecolors=face, edgecolors=colour, linewidth=1.2, zorder=3)
    drawn.set_gid(theme.TOOLTIP + tooltip)


def named_colours(run: Run) -> dict[str, str]:
    """The lines that have a colour and a name in the plot."""
    colours = {"least_requests": theme.SECOND, "round_robin": theme.THIRD}
    if run.baselines:
        colours[best_baseline(run)] = theme.RIVAL
    return {**colours, OURS: theme.OURS, "bound": theme.INK}


def colour_of(name: str, run: Run) -> str:
    """Of a policy in plots where policies are told apart by colour."""
    return named_colours(run).get(name, theme.VARIANT if is_ours(name) else theme.FAINT)


def draw_line(axes: Axes, name: str, points: np.ndarray, run: Run) -> np.ndarray:
    """Draws a policy's line, or the bound's, and returns its points."""
    stands_out = name in named_colours(run)
    style: dict[str, Any] = {"linewidth": 2.6 if name == OURS else 1.6 if stands_out else 0.9}
    if name == "bound":
        style = {"linewidth": 1.3, "linestyle": (0, (4, 3))}
    (drawn,) = axes.plot(
        points[:, 0], points[:, 1], color=colour_of(name, run), zorder=3 if stands_out else 2, **style
    )
    drawn.set_gid(theme.TOOLTIP + title(name))
    return points


def name_lines(drawing: Drawing, axes: Axes, lines: dict[str, np.ndarray], run: Run) -> None:
    """Writes each line's name beside it, where it covers least."""
    drawing.draw_without_rendering()
    pixels = {name: _on_screen(axes, points) for name, points in lines.items()}
    obstacles = np.concatenate(list(pixels.values()))
    box = axes.get_window_extent()
    area = np.array([[box.x0, box.y0], [box.x1, box.y1]])
    taken: list[np.ndarray] = []
    for name in reversed(list(lines)):
        text = _label(axes, name, run)
        extent = text.get_window_extent()
        size = (extent.width, extent.height)
        candidates = pixels[name][:: max(1, len(pixels[name]) // 60)]
        left, bottom = beside_line(candidates, size, obstacles, taken, area)
        taken.append(np.array([[left, bottom], [left + size[0], bottom + size[1]]]))
        text.set_position(tuple(axes.transAxes.inverted().transform((left, bottom))))


def name_ends(drawing: Drawing, axes: Axes, lines: dict[str, np.ndarray], run: Run) -> None:
    """Writes each line's name to the right of its end, apart from each other."""
    drawing.draw_without_rendering()
    box = axes.get_window_extent()
    ends = [float(_on_screen(axes, points)[-1, 1]) for points in lines.values()]
    height = 13 * drawing.dpi / 72
    placed = stacked(ends, height, box.y0 - height, box.y1)
    for name, bottom in zip(lines, placed, strict=True):
        text = _label(axes, name, run)
        text.set_verticalalignment("center")
        text.set_position((1.015, float(axes.transAxes.inverted().transform((0, bottom))[1])))


def _label(axes: Axes, name: str, run: Run) -> Any:
    return axes.text(
        0,
        0,
        title(name),
        transform=axes.transAxes,
        color=colour_of(name, run),
        fontweight="bold" if name == OURS else "normal",
        va="bottom",
        zorder=5,
    )


def _on_screen(axes: Axes, points: Iterable[Point] | np.ndarray) -> np.ndarray:
    """The line in pixels, with points between its own so that it has no gaps."""
    corners = axes.transData.transform(np.asarray(points))
    steps = np.linspace(0, 1, 8, endpoint=False)[:, None]
    between = corners[:-1, None] + (corners[1:, None] - corners[:-1, None]) * steps
    return np.concatenate([between.reshape(-1, 2), corners[-1:]])
