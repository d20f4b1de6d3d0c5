"""The HTML page of a run: one file that needs nothing else and says how it was made."""

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from lab.results.model import Run
from lab.results.page import page


class _Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def _page(example: dict[str, Any]) -> str:
    return page(msgspec.convert(example, Run))


@pytest.fixture(scope="module")
def text(untouched: dict[str, Any]) -> str:
    return _page(untouched)


def test_the_page_loads_nothing(text: str) -> None:
    read = _Reader(text)
    assert not read.tags.keys() & {"script", "link", "img", "iframe", "object"}
    assert "@import" not in text
    links = [value for name, value in read.attributes if name in ("href", "src", "xlink:href")]
    assert all(value and value.startswith("#") for value in links)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_ids_are_unique_so_that_no_plot_clips_another(text: str) -> None:
    ids = Counter(value for name, value in _Reader(text).attributes if name == "id")
    assert [value for value, count in ids.items() if count > 1] == []


def test_the_page_has_all_plots_all_tables_and_how_it_was_run(text: str, untouched: dict[str, Any]) -> None:
    read = _Reader(text)
    assert read.tags["svg"] == 7
    assert read.tags["table"] == 5
    for said in (
        untouched["run"]["command"],
        "No request waits",
        "arrivals spread",
        "https://example.org, defaults",
    ):
        assert said in text


def test_text_from_the_run_cannot_become_markup(example: dict[str, Any]) -> None:
    example["run"]["description"] = example["scenario"] = "<script>alert(1)</script>"
    example["policies"]["random"]["citation"] = "<img src=x>"
    example["policies"]["<b>bold</b>"] = example["policies"]["random"]
    assert not _Reader(_page(example)).tags.keys() & {"script", "img", "b"}


def test_one_seed_is_said_to_have_no_spread(example: dict[str, Any]) -> None:
    example["run"]["seeds"] = 1
    for result in example["policies"].values():
        del result["min"], result["max"]
    assert "One seed only" in _page(example)


def test_the_same_run_gives_the_same_page(text: str, example: dict[str, Any]) -> None:
    assert _page(example) == text


@pytest.mark.parametrize("kept", [{"tokenfleet"}, {"random", "llm_d"}, {"tokenfleet", "tokenfleet_no_price"}])
def test_a_run_of_a_few_policies_is_shown_without_a_comparison(
    example: dict[str, Any], kept: set[str]
) -> None:
    example["policies"] = {name: result for name, result in example["policies"].items() if name in kept}
    text = _page(example)
    assert "TokenFleet was not compared with a baseline in this run." in text
    assert "No baseline beats TokenFleet" not in text
    assert _Reader(text).tags["svg"] == 7
