"""The plots: they follow the reader's colours, name their lines, and do without series."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from lab.results import theme
from lab.results.model import Run
from lab.results.plots import plots, write_plots

SVG = "{http://www.w3.org/2000/svg}"


def _svgs(example: dict[str, Any]) -> dict[str, ElementTree.Element]:
    drawn = plots(msgspec.convert(example, Run))
    return {plot.name: ElementTree.fromstring(plot.svg(standalone=False)) for plot in drawn}


def _texts(svg: ElementTree.Element) -> set[str]:
    return {"".join(text.itertext()).strip() for text in svg.iter(f"{SVG}text")}


@pytest.fixture(scope="module")
def svgs(untouched: dict[str, Any]) -> dict[str, ElementTree.Element]:
    return _svgs(untouched)


@pytest.mark.parametrize("name", ["ttft", "goodput", "queues"])
def test_lines_that_matter_are_named_and_all_have_a_tooltip(
    svgs: dict[str, ElementTree.Element], name: str
) -> None:
    svg = svgs[name]
    assert {"TokenFleet", "lowest TTFT", "least requests", "round robin"} <= _texts(svg)
    assert "random" not in _texts(svg)
    tooltips = {title.text for title in svg.iter(f"{SVG}title")}
    assert {"TokenFleet", "random", "SGLang cache aware"} <= tooltips


def test_the_bound_is_in_the_plot_of_ttft(svgs: dict[str, ElementTree.Element]) -> None:
    assert "bound" in _texts(svgs["ttft"])


def test_all_colours_follow_the_scheme_so_that_the_plot_reads_on_dark(
    svgs: dict[str, ElementTree.Element],
) -> None:
    for svg in svgs.values():
        text = ElementTree.tostring(svg, encoding="unicode")
        assert "#" not in text.replace('"#', "").replace("(#", ""), "a colour is fixed"


def test_both_schemes_have_every_colour() -> None:
    assert theme.LIGHT.keys() == theme.DARK.keys()


@pytest.mark.parametrize("scheme", [theme.LIGHT, theme.DARK])
def test_text_and_named_lines_stand_out_from_the_paper(scheme: dict[str, str]) -> None:
    for name in ("ink", "muted", "ours", "rival", "second", "third"):
        assert _contrast(scheme[name], scheme["paper"]) >= 4.5, name


def test_a_run_kept_without_series_still_shows_goodput_lengths_and_fates(example: dict[str, Any]) -> None:
    for result in example["policies"].values():
        result.pop("series")
    assert list(_svgs(example)) == ["overview", "lengths", "fates"]


def test_plots_are_written_as_files_of_their_own(tmp_path: Path, example: dict[str, Any]) -> None:
    paths = write_plots(msgspec.convert(example, Run), tmp_path / "plots")
    assert len(paths) == 7
    for path in paths:
        root = ElementTree.parse(path).getroot()
        assert root.find(f"{SVG}style") is not None, "stands alone, so it brings its colours"
        assert root.get("aria-label")


def _contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""
    lights = sorted((_luminance(one), _luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_what_became_of_each_class_is_told_per_policy_where_there_are_several(
    example: dict[str, Any],
) -> None:
    svg = _svgs(example)["fates"]
    assert {"interactive (9,000)", "long_context (1,800)", "batch (1,200)"} <= _texts(svg)
    tooltips = {title.text for title in svg.iter(f"{SVG}title")}
    assert "TokenFleet: 98.5 % met, 0.3 % missed, 1.2 % refused" in tooltips
    for result in example["policies"].values():
        result["classes"] = {"interactive": result["classes"]["interactive"]}
    assert "fates" not in _svgs(example)
