"""`tokenfleet lab run` as its user sees it."""

import json
from pathlib import Path

import msgspec
from click.testing import CliRunner

from lab.lab_command import lab
from lab.results.model import Run


def invoke(*arguments: str):
    return CliRunner().invoke(lab, list(arguments))


def test_a_run_writes_json_with_medians_and_spread_for_each_policy_and_the_bound(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    names = ("tokenfleet", "tokenfleet_no_admission", "round_robin", "least_requests")
    policies = [word for name in names for word in ("--policy", name)]
    result = invoke(
        "run",
        "routing",
        "--trace",
        "generated",
        "--requests",
        "80",
        "--seeds",
        "3",
        "--json",
        str(out),
        *policies,
    )
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert set(document["policies"]) == set(names)
    for figures in document["policies"].values():
        assert figures["offered"] == 80
        low, middle, high = (part["ttft_s"]["p95"] for part in (figures["min"], figures, figures["max"]))
        assert low <= middle <= high
        assert set(figures["input_lengths"]) == {"4k", "16k", "64k", "longer"}
        assert set(figures["classes"]) <= {"interactive", "long_context", "batch"}
    assert (
        document["bound"]["goodput_tokens_per_s"]
        >= document["policies"]["tokenfleet"]["goodput_tokens_per_s"]
    )
    assert document["bound"]["relaxation"]
    msgspec.convert(document, Run, strict=False)


def test_plots_and_a_page_are_drawn_where_asked(tmp_path: Path) -> None:
    result = invoke(
        "run",
        "burst",
        "--trace",
        "generated",
        "--requests",
        "60",
        "--plot",
        str(tmp_path / "plots"),
        "-p",
        "tokenfleet",
        "-p",
        "round_robin",
        "-p",
        "least_requests",
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "plots" / "burst.html").stat().st_size > 10_000


def test_an_unknown_policy_is_refused_with_those_known() -> None:
    result = invoke("run", "routing", "--policy", "best")
    assert result.exit_code == 2
    assert "least_requests" in result.output


def test_the_scenarios_are_listed() -> None:
    result = invoke("scenarios")
    assert result.exit_code == 0
    assert "multisite" in result.output
