"""A folder of runs: what can be reported, and what is said of what cannot."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab.results.command import report
from lab.results.compact import encode
from lab.results.read import read_run, read_runs
from tokenfleet.errors import TokenFleetError


def _write(folder: Path, run: Any, name: str = "example.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(run))
    return path


def test_a_run_is_read_with_its_figures(tmp_path: Path, example: dict[str, Any]) -> None:
    run = read_run(_write(tmp_path, example))
    assert run.ours.goodput_tokens_per_s == example["policies"]["tokenfleet"]["goodput_tokens_per_s"]
    assert "tokenfleet_no_price" not in run.baselines
    assert {"round_robin", "least_requests"} <= set(run.baselines)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "not the JSON of a lab run"),
        ("[]", "not the JSON of a lab run: Expected `object`"),
        ('{"scenario": "x"}', "missing required field `bound`"),
        ('{"total": {}, "classes": {}}', "missing required field `scenario`"),
    ],
)
def test_a_json_of_another_shape_is_named_with_what_is_wrong(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(TokenFleetError) as caught:
        read_runs(tmp_path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "tokenfleet lab run" in str(caught.value)


def test_a_figure_of_the_wrong_type_is_located(tmp_path: Path, example: dict[str, Any]) -> None:
    example["policies"]["random"]["goodput_tokens_per_s"] = "fast"
    with pytest.raises(TokenFleetError, match=r"goodput_tokens_per_s"):
        read_run(_write(tmp_path, example))


def test_missing_policies_are_named(tmp_path: Path, example: dict[str, Any]) -> None:
    del example["policies"]["round_robin"], example["policies"]["tokenfleet"]
    with pytest.raises(TokenFleetError, match="has no policy tokenfleet, round_robin"):
        read_run(_write(tmp_path, example))


def test_one_seed_is_not_fit_for_the_docs_because_it_has_no_spread(
    tmp_path: Path, example: dict[str, Any]
) -> None:
    example["run"]["seeds"] = 1
    path = _write(tmp_path, example)
    assert read_run(path).run.seeds == 1
    with pytest.raises(TokenFleetError, match="one seed only") as caught:
        read_runs(tmp_path)
    assert "tokenfleet lab run example --seeds 5" in str(caught.value)


def test_a_policy_without_spread_is_named(tmp_path: Path, example: dict[str, Any]) -> None:
    del example["policies"]["llm_d"]["max"]
    _write(tmp_path, example)
    with pytest.raises(TokenFleetError, match="no min and max for llm_d"):
        read_runs(tmp_path)


def test_two_runs_of_one_scenario_are_refused(tmp_path: Path, example: dict[str, Any]) -> None:
    _write(tmp_path, example, "a.json")
    _write(tmp_path, example, "b.json")
    with pytest.raises(TokenFleetError, match=r"b\.json: a second run of example"):
        read_runs(tmp_path)


def test_every_bad_file_is_named_at_once(tmp_path: Path, example: dict[str, Any]) -> None:
    (tmp_path / "broken.json").write_text("{")
    example["run"]["seeds"] = 1
    _write(tmp_path, example, "short.json")
    with pytest.raises(TokenFleetError) as caught:
        read_runs(tmp_path)
    assert "broken.json" in str(caught.value)
    assert "short.json" in str(caught.value)


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(TokenFleetError, match="holds no runs") as caught:
        read_runs(tmp_path)
    assert "tokenfleet lab run" in str(caught.value)


def test_nothing_is_written_when_a_run_is_bad(tmp_path: Path, example: dict[str, Any]) -> None:
    _write(tmp_path, example)
    (tmp_path / "broken.json").write_text("{")
    out = tmp_path / "results.md"
    result = CliRunner().invoke(
        report, ["--runs", str(tmp_path), "--out", str(out), "--trust", str(tmp_path / "none")]
    )
    assert result.exit_code != 0
    assert isinstance(result.exception, TokenFleetError)
    assert not out.exists()


def test_the_command_writes_the_document_and_a_page_per_run(tmp_path: Path, example: dict[str, Any]) -> None:
    _write(tmp_path, example)
    out, pages = tmp_path / "docs" / "results.md", tmp_path / "pages"
    arguments = [
        "--runs",
        str(tmp_path),
        "--out",
        str(out),
        "--html",
        str(pages),
        "--trust",
        str(tmp_path / "none"),
    ]
    result = CliRunner().invoke(report, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert out.read_text().startswith("# Results")
    assert (pages / "example.html").read_text().startswith("<!doctype html>")


def test_a_run_kept_compactly_reports_the_same_figures(tmp_path: Path, example: dict[str, Any]) -> None:
    many = {f"baseline_{i}": example["policies"]["random"] for i in range(10)}
    example["policies"] |= many
    path = tmp_path / "example.json"
    path.write_bytes(encode(example))
    assert path.stat().st_size < 256_000
    run, original = read_run(path), read_run(_write(tmp_path, example, "full.json"))
    assert list(run.policies) == list(original.policies)
    assert run.ours.goodput_tokens_per_s == pytest.approx(original.ours.goodput_tokens_per_s, rel=1e-5)
    kept, whole = run.ours.series.ttft_cdf, original.ours.series.ttft_cdf
    assert len(kept) < len(whole)
    assert kept[-1][1] == pytest.approx(whole[-1][1], rel=1e-3)
