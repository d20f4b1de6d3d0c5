"""The plots of a run. TokenFleet stands out, a few baselines have a colour, the rest a tooltip."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from lab.results import theme
from lab.results.drawing import (
    DENSE_ROW_IN,
    HEIGHT_IN,
    NARROW_IN,
    PERCENT,
    ROW_IN,
    WIDE_IN,
    Plot,
    colour_of,
    draw_dot,
    draw_line,
    line_axes,
    listing_axes,
    name_ends,
    name_lines,
    named_colours,
)
from lab.results.fates import fates
from lab.results.labels import GAP
from lab.results.model import (
    LENGTHS,
    OURS,
    PartFigures,
    Point,
    PolicyFigures,
    PolicyResult,
    Run,
    title,
)
from lab.results.tables import share
from lab.results.writing import percent, whole

THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}" if value == round(value) else f"{value:,g}")
STEPS_MIN = (0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 360, 1440)
SECONDS = FuncFormatter(lambda value, _: f"{value:g}")


def plots(run: Run) -> list[Plot]:
    """Every plot the run has figures for. Runs kept without series have fewer."""
    with mpl.rc_context(theme.STYLE):
        drawn = (overview(run), ttft(run), goodput(run), queues(run), loads(run), lengths(run), fates(run))
        return [plot for plot in drawn if plot]


def write_plots(run: Run, folder: Path) -> list[Path]:
    """Writes each plot as an SVG file of its own and returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for plot in plots(run):
        path = folder / f"{run.scenario}-{plot.name}.svg"
        path.write_text(plot.svg(standalone=True), encoding="utf-8")
        paths.append(path)
    return paths


def overview(run: Run) -> Plot:
    """Goodput and attainment of every policy."""
    names = sorted(run.policies, key=lambda name: run.policies[name].goodput_tokens_per_s)
    drawing, (left, right) = listing_axes(names, 2, (WIDE_IN, 0.9 + ROW_IN * len(names)))
    for row, name in enumerate(names):
        result = run.policies[name]
        text = f"{title(name)}: {whole(result.goodput_tokens_per_s)} tokens/s"
        draw_dot(left, row, name, result, lambda f: f.goodput_tokens_per_s, text)
        text = (
            f"{title(name)}: {percent(result.attainment_offered)} of offered, "
            f"{percent(result.attainment_admitted)} of admitted"
        )
        draw_dot(right, row, name, result, lambda f: f.attainment_admitted, text, hollow=True)
        draw_dot(right, row, name, result, lambda f: f.attainment_offered, text)
    left.set_title("Goodput, tokens/s")
    left.xaxis.set_major_formatter(THOUSANDS)
    bound = run.bound.goodput_tokens_per_s
    left.axvline(bound, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)))
    left.annotate(
        f"bound {whole(bound)}",
        (bound, 0),
        (-GAP, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        color=theme.INK,
    )
    left.set_xlim(0, max(left.get_xlim()[1], bound * 1.03))
    right.set_title("Met their objective: ● of offered, ○ of admitted")
    right.set_xlim(-0.02, 1.02)
    right.xaxis.set_major_formatter(PERCENT)
    return Plot(
        "overview",
        "Goodput and attainment",
        f"Goodput and attainment of {len(names)} policies; the figures are in the table of all requests.",
        drawing,
        wide=True,
    )


def ttft(run: Run) -> Plot | None:
    """The distribution of TTFT."""
    lines = _series(run, lambda result: result.series.ttft_cdf)
    if not lines:
        return None
    drawing, axes = line_axes()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(SECONDS)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("TTFT, s (log scale)")
    if run.bound.series.ttft_cdf:
        lines["bound"] = np.array(run.bound.series.ttft_cdf)
    drawn = {name: draw_line(axes, name, points, run) for name, points in lines.items()}
    name_lines(
        drawing, axes, {name: points for name, points in drawn.items() if name in named_colours(run)}, run
    )
    return Plot(
        "ttft",
        "TTFT: share of answered requests at or below",
        "Cumulative distribution of TTFT, one line per policy; P50, P95 and P99 are in the table of all requests.",
        drawing,
    )


def goodput(run: Run) -> Plot | None:
    """Goodput over time."""
    lines = _series(run, lambda result: result.series.goodput_over_time)
    if not lines:
        return None
    smooth = {name: _moving_mean(points) for name, points in lines.items()}
    return _over_time(run, smooth, "goodput", "Goodput over time, tokens/s (moving mean)")


def queues(run: Run) -> Plot | None:
    """Queue lengths over time."""
    lines = _series(run, lambda result: result.series.queue_length_over_time)
    heading = "Waiting requests per instance over time"
    return _over_time(run, lines, "queues", heading) if lines else None


def lengths(run: Run) -> Plot | None:
    """Attainment per input-length class: shows who wins by refusing the long ones."""
    keys = list(run.input_lengths)
    if not keys:
        return None
    names = sorted(run.policies, key=lambda name: run.policies[name].goodput_tokens_per_s)
    drawing, panels = listing_axes(names, len(keys), (WIDE_IN, 0.9 + ROW_IN * len(names)))
    for axes, key in zip(panels, keys, strict=True):
        for row, name in enumerate(names):
            _length_row(axes, row, name, run.policies[name], key)
        axes.set_title(f"{LENGTHS[key]}")
        axes.set_xlim(-0.03, 1.03)
        axes.set_xticks((0, 0.5, 1))
        axes.xaxis.set_major_formatter(PERCENT)
    return Plot(
        "lengths",
        "Met of offered, by prompt length in tokens; the bar is the share refused",
        "Attainment and refusals of every policy per input-length class; the figures are in the table.",
        drawing,
        wide=True,
    )


def loads(run: Run) -> Plot | None:
    """How evenly the policies load the instances."""
    loaded = {
        name: r.series.per_instance_load for name, r in run.policies.items() if r.series.per_instance_load
    }
    if not loaded:
        return None
    names = sorted(loaded, key=lambda name: run.policies[name].goodput_tokens_per_s)
    drawing, (axes,) = listing_axes(names, 1, (NARROW_IN, max(HEIGHT_IN, 0.7 + DENSE_ROW_IN * len(names))))
    for row, name in enumerate(names):
        busy = loaded[name]
        dots = axes.scatter(
            list(busy.values()),
            [row] * len(busy),
            s=34,
            color=colour_of(name, run),
            alpha=0.55,
            linewidth=0,
            zorder=3,
        )
        least, most = min(busy, key=busy.__getitem__), max(busy, key=busy.__getitem__)
        dots.set_gid(
            f"{theme.TOOLTIP}{title(name)}: from {percent(busy[least])} ({least}) to {percent(busy[most])} ({most})"
        )
    lowest = min(min(busy.values()) for busy in loaded.values())
    axes.set_xlim(max(0.0, np.floor(lowest * 10) / 10 - 0.01), 1.01)
    axes.xaxis.set_major_formatter(PERCENT)
    return Plot(
        "load",
        "Share of the time each instance was busy",
        "One dot per instance and policy: the closer together, the more even the load.",
        drawing,
    )


def _moving_mean(points: np.ndarray) -> np.ndarray:
    """Means over a twentieth of the points: answers end in bursts, which hide the course of the run."""
    window = max(1, len(points) // 20)
    weights = np.full(window, 1 / window)
    means = [np.convolve(points[:, axis], weights, mode="valid") for axis in (0, 1)]
    return np.column_stack(means)


def _over_time(run: Run, lines: dict[str, np.ndarray], name: str, heading: str) -> Plot:
    drawing, axes = line_axes()
    drawn = {policy: draw_line(axes, policy, points, run) for policy, points in lines.items()}
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 60:g}"))
    span = max(points[-1, 0] for points in lines.values())
    step = next((s for s in STEPS_MIN if span / 60 / s <= 8), STEPS_MIN[-1])
    axes.set_xticks(np.arange(0, span + 1, step * 60))
    axes.set_xlim(min(points[0, 0] for points in lines.values()), span)
    axes.set_xlabel("minutes from the start")
    named = {policy: points for policy, points in drawn.items() if policy in named_colours(run)}
    name_ends(drawing, axes, named, run)
    return Plot(name, heading, f"{heading}, one line per policy, from the first seed.", drawing)


def _length_row(axes: Axes, row: int, name: str, result: PolicyResult, key: str) -> None:
    def attained(figures: PolicyFigures) -> float | None:
        found: PartFigures | None = figures.input_lengths.get(key)
        return found.attainment_offered if found else None

    figures = result.input_lengths.get(key)
    if figures is None:
        return
    refused = share(figures.rejected, figures.offered) or 0.0
    text = f"{title(name)}: {percent(figures.attainment_offered)} met, {percent(refused)} refused"
    if refused > 0:
        axes.barh(row, refused, left=1 - refused, height=0.5, color=theme.FAINT, alpha=0.7, zorder=2)
    draw_dot(axes, row, name, result, attained, text)


def _series(run: Run, of: Callable[[PolicyResult], Sequence[Point]]) -> dict[str, np.ndarray]:
    """The policies' lines, TokenFleet's last so that it is drawn over the others."""
    lines = {name: np.array(of(result)) for name, result in run.policies.items() if len(of(result)) > 1}
    return dict(sorted(lines.items(), key=lambda item: (item[0] == OURS, item[0] in named_colours(run))))
