"""docs/results.md: made from docs/runs by the command, and only by it."""

from pathlib import Path
from typing import Any

import msgspec

from lab.results.markdown import results
from lab.results.model import Run
from lab.results.read import read_runs

ROOT = Path(__file__).parents[3]
RUNS, RESULTS = ROOT / "docs" / "runs", ROOT / "docs" / "results.md"


def _text(example: dict[str, Any]) -> str:
    return results([msgspec.convert(example, Run)], "docs/runs")


def test_the_document_in_docs_is_what_the_command_makes_from_the_runs_in_docs() -> None:
    if not list(RUNS.glob("*.json")):
        assert not RESULTS.exists(), f"{RESULTS} has figures, but {RUNS} has no runs they could come from"
        return
    made = results(read_runs(RUNS), "docs/runs")
    assert RESULTS.read_text(encoding="utf-8") == made, "run: tokenfleet lab report"


def test_the_runs_in_docs_are_small_enough_to_commit() -> None:
    large = [path.name for path in RUNS.glob("*.json") if path.stat().st_size > 256_000]
    assert large == []


def test_the_document_says_how_to_make_each_run_again(example: dict[str, Any]) -> None:
    text = _text(example)
    assert example["run"]["command"] in text
    assert "example\\_trace.jsonl at 1.35x, 12,000 requests, 5 seeds" in text
    assert "No request waits for another" in text


def test_every_table_lists_every_policy(example: dict[str, Any]) -> None:
    text = _text(example)
    tables = 1 + 3 + 1
    assert text.count("\n| round robin |") == tables + 1, "each table of figures, and the list of policies"


def test_rows_have_as_many_cells_as_their_header(example: dict[str, Any]) -> None:
    example["run"]["description"] = "a | b"
    example["policies"]["random"]["citation"] = "left | right"
    width = None
    for line in _text(example).splitlines():
        if not line.startswith("|"):
            width = None
            continue
        cells = line.replace("\\|", "").count("|")
        width = width or cells
        assert cells == width, line


def test_a_defeat_is_in_the_document(example: dict[str, Any]) -> None:
    example["policies"]["llm_d"]["goodput_tokens_per_s"] = 2000.0
    text = _text(example)
    assert "20.0 % less than the best baseline, llm-d" in text
    assert "- goodput, tokens/s: 1,600 against 2,000 (llm-d)" in text
    assert "2,000 (TokenFleet -20.0 %)" in text


def _errors(median: float) -> dict[str, Any]:
    own = {
        "n": 900,
        "median_ape": median,
        "p90_ape": 4 * median,
        "median_ape_after_500": median,
        "p90_ape_after_500": 4 * median,
        "covered_p50": 0.512,
        "covered_p90": None,
    }
    return {"ttft": {**own, "input_lengths": {"4k": own}}, "tpot": {"n": 0}}


def test_a_run_of_before_predictions_were_kept_says_nothing_about_them(example: dict[str, Any]) -> None:
    assert "rediction" not in _text(example)


def test_each_policy_that_predicts_shows_how_far_its_predictions_were_off(example: dict[str, Any]) -> None:
    for name, median in (("tokenfleet", 0.06), ("llm_d", 0.21)):
        example["policies"][name]["prediction"] = _errors(median)
    text = _text(example)
    table = text.split("Prediction error of TTFT", 1)[1].split("\n\n", 2)[1]
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| **TokenFleet**", "| llm-d"]
    assert "**6.0 %**" in table
    assert "(84.0 %)" in table
    assert "Prediction error of TPOT" not in text
    assert "The error of a prediction is" in text
