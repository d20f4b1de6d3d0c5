"""`tokenfleet lab plan` as its user sees it, on days short enough to wait for."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from lab.lab_command import lab
from lab.planning.simulate import POLICIES


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(lab, ["plan", *arguments], env={"COLUMNS": "200"})


def test_all_policies_are_shown_and_written_with_the_forecasts_errors(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = invoke("--days", "0.05", "--seeds", "2", "--processes", "1", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert all(policy in result.output for policy in POLICIES) and "above upper" in result.output
    document = json.loads(out.read_text())
    assert list(document["means"]) == list(document["seeds"]) == list(POLICIES)
    of_plan = [one["gpu_hours"] for one in document["seeds"]["plan"]]
    assert document["means"]["plan"]["gpu_hours"] == sum(of_plan) / 2


def test_a_warm_up_is_whole_minutes_and_never_less_than_asked(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = invoke("--days", "0.05", "--seeds", "1", "--warm-up", "61", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["asked"]["warm_up_steps"] == 2


def test_of_a_trace_only_forecasts_are_judged(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = invoke("--trace", "generated?requests=2000", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "as now off" in result.output and "reactive" not in result.output
    assert list(json.loads(out.read_text())["forecast"]) == ["10 s", "60 s", "150 s"]


def test_a_trace_that_cannot_be_read_is_an_error_in_words() -> None:
    result = invoke("--trace", "nowhere.csv")
    assert result.exit_code != 0 and "nowhere.csv" in str(result.exception or result.output)
