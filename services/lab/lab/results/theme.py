"""Colours and SVG export: one drawing that reads well on light and on dark paper.

Matplotlib draws in the light colours; the export replaces each of them by a CSS variable that a page (or the
drawing itself, where it stands alone) sets for both schemes. The hues are Okabe and Ito's, told apart by people
with any of the common colour-vision deficiencies.
"""

import io
import re
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

INK, MUTED, GRID, FAINT, PAPER = "#1a1d21", "#5c6570", "#e2e6ea", "#b4bcc5", "#fefefe"
OURS, RIVAL, SECOND, THIRD, VARIANT = "#0067b1", "#c24f00", "#00775a", "#a0487f", "#5aa0d6"

LIGHT = {
    "ink": INK,
    "muted": MUTED,
    "grid": GRID,
    "faint": FAINT,
    "paper": PAPER,
    "ours": OURS,
    "rival": RIVAL,
    "second": SECOND,
    "third": THIRD,
    "variant": VARIANT,
}
DARK = {
    "ink": "#e8eaed",
    "muted": "#a3adb8",
    "grid": "#2c333b",
    "faint": "#5d6873",
    "paper": "#14181d",
    "ours": "#56b4ff",
    "rival": "#f0913f",
    "second": "#3fc79a",
    "third": "#e08fc4",
    "variant": "#3a7fb5",
}

STYLE: dict[Any, Any] = {
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "xtick.minor.size": 0,
    "ytick.color": FAINT,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}

SVG = "http://www.w3.org/2000/svg"
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
TOOLTIP = "tip:"
"""A drawn thing whose gid starts with this shows the rest of it when pointed at."""


def variables(colours: dict[str, str]) -> str:
    """CSS declarations of the colours."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def svg(figure: Figure, name: str, description: str, *, standalone: bool) -> str:
    """The figure as an SVG element that follows the reader's colour scheme.

    `name` makes its inner ids differ from those of other drawings on one page; `description` is what a screen
    reader says. Standalone drawings bring their own colours; others take the page's. The same figure gives the
    same bytes.
    """
    buffer = io.BytesIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314 - our own output
    _strip(root)
    root.set("role", "img")
    root.set("aria-label", description)
    root.set("class", "plot")
    if standalone:
        colours = (
            f"svg {{ {variables(LIGHT)} }} "
            f"@media (prefers-color-scheme: dark) {{ svg {{ {variables(DARK)} }} }} "
            f"svg {{ background: var(--paper); }}"
        )
        style = ElementTree.Element(f"{{{SVG}}}style")
        style.text = f"{colours} text {{ {TEXT_CSS} }}"
        root.insert(0, style)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return _with_variables(ElementTree.tostring(root, encoding="unicode"))


TEXT_CSS = f"font-family: {FONTS}; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round;"
"""The halo keeps labels readable where lines run behind them."""


def _strip(root: ElementTree.Element) -> None:
    """Takes out the metadata, the fixed size and the ids nothing refers to; makes tooltips of marked ones."""
    for tag in ("metadata",):
        for element in root.findall(f"{{{SVG}}}{tag}"):
            root.remove(element)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    for group in root.iter(f"{{{SVG}}}g"):
        tip = group.attrib.pop("id", "")
        if tip.startswith(TOOLTIP):
            group.set("class", "mark")
            element = ElementTree.Element(f"{{{SVG}}}title")
            element.text = tip.removeprefix(TOOLTIP)
            group.insert(0, element)


def _with_variables(text: str) -> str:
    for name, colour in LIGHT.items():
        text = text.replace(colour, f"var(--{name})")
    return re.sub(r"font: (\d+ )?([\d.]+)px [^;\"]*", _font, text)


def _font(match: re.Match[str]) -> str:
    weight = f"font-weight: {match[1].strip()}; " if match[1] else ""
    return f"{weight}font-size: {match[2]}px"
