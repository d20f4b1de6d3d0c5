"""The plot of what became of each class's requests: met, missed or refused."""

from collections.abc import Iterable

from matplotlib.axes import Axes

from lab.results import theme
from lab.results.drawing import PERCENT, ROW_IN, WIDE_IN, Plot, listing_axes
from lab.results.model import OURS, Figures, Run, title
from lab.results.tables import share
from lab.results.writing import percent, whole

HEIGHT = 0.62
"""Of a bar, in rows."""


def fates(run: Run) -> Plot | None:
    """Stacked shares of every policy's offered requests, a panel per class; None where there is one class only."""
    classes = run.classes
    if len(classes) < 2:
        return None
    names = sorted(run.policies, key=lambda name: run.policies[name].goodput_tokens_per_s)
    drawing, panels = listing_axes(names, len(classes), (WIDE_IN, 0.9 + ROW_IN * len(names)))
    for axes, (request_class, offered) in zip(panels, classes.items(), strict=True):
        for row, name in enumerate(names):
            figures = run.policies[name].classes.get(request_class)
            if figures is not None:
                _stack(axes, row, name, figures)
        axes.set_title(f"{request_class} ({whole(offered)})")
        axes.set_xlim(0, 1)
        axes.set_xticks((0, 0.5, 1))
        axes.xaxis.set_major_formatter(PERCENT)
    return Plot(
        "fates",
        "Of each class's offered requests: met (dark), missed (pale), refused (empty)",
        "Shares of met, missed and refused requests of every policy per class; the figures are in the tables.",
        drawing,
        wide=True,
    )


def _stack(axes: Axes, row: int, name: str, figures: Figures) -> None:
    met = figures.attainment_offered or 0.0
    refused = share(figures.rejected, figures.offered) or 0.0
    missed = max(0.0, 1 - met - refused)
    colour = theme.OURS if name == OURS else theme.MUTED
    text = f"{title(name)}: {percent(met)} met, {percent(missed)} missed, {percent(refused)} refused"
    for left, width, alpha in _segments(met, missed):
        (bar,) = axes.barh(row, width, left=left, height=HEIGHT, color=colour, alpha=alpha, zorder=3)
        bar.set_gid(theme.TOOLTIP + text)


def _segments(met: float, missed: float) -> Iterable[tuple[float, float, float]]:
    """Left edge, width and opacity; what is refused stays empty."""
    yield 0.0, met, 0.95
    yield met, missed, 0.3
