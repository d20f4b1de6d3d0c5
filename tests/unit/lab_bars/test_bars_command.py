"""`tokenfleet lab bars` as its user sees it, on traces small enough to wait for."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab.bars.measure import Measuring, measure
from lab.bars.model import OURS, PEERS, Needed
from lab.lab_command import lab

SMALL = ("--trace", "generated", "--requests", "60", "--processes", "1", "--seeds", "1")


def invoke(*arguments: str):
    return CliRunner().invoke(lab, ["bars", *arguments])


def test_a_missed_bar_ends_with_status_1_and_says_which(tmp_path: Path) -> None:
    out = tmp_path / "bars.json"
    result = invoke("--scenario", "profile_error", *SMALL, "--json", str(out), "--runs", str(tmp_path))
    # Sixty requests leave nothing after the first 500, and what is not known is not promised.
    assert result.exit_code == 1, result.output
    assert "0 of 1 bars cleared" in result.output
    document = json.loads(out.read_text())
    assert [bar["passed"] for bar in document["bars"]] == [False, False]
    assert set(document["runs"]) == {"profile_error", "profile_error, truly registered", "routing"}


def test_an_unknown_scenario_is_refused_with_those_that_have_bars() -> None:
    result = invoke("--scenario", "nowhere")
    assert result.exit_code == 2
    assert "routing" in result.output


def _kept_run(path: Path, seeds: int) -> dict[str, Any]:
    policies = ",".join(("round_robin", *PEERS))
    asked = ("run", "routing", "--trace", "generated", "--requests", "40", "--processes", "1")
    command = [*asked, "--seeds", str(seeds), "--policies", policies, "--json", str(path)]
    result = CliRunner().invoke(lab, command)
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run of routing, one seed; llm-d's figures in it are marked."""
    folder = tmp_path_factory.mktemp("runs")
    path = folder / "routing.json"
    run = _kept_run(path, seeds=1)
    run["policies"]["llm_d"]["ttft_s"]["p50"] = 123.0
    path.write_text(json.dumps(run))
    return folder


def _measure(runs: Path, **changes: Any):
    shown: list[str] = []

    def progress(label: str, _total: int):
        shown.append(label)
        return _Silent()

    asked = {"runs": runs, "trace": "generated", "requests": 40, "processes": 1} | changes
    needed = Needed(frozenset({OURS}), frozenset({"round_robin", *PEERS}))
    return measure("routing", needed, Measuring(**asked), progress), shown


class _Silent:
    def __enter__(self):
        return lambda *_: None

    def __exit__(self, *_: object) -> None: ...


def test_peers_of_the_same_run_made_before_are_not_run_again(runs: Path) -> None:
    measured, shown = _measure(runs)
    assert measured.policies["llm_d"].ttft_s.p50 == 123.0
    assert "llm_d" in measured.kept
    assert len(shown) == 1
    assert OURS in shown[0]


@pytest.mark.parametrize("change", [{"fresh": True}, {"seeds": 2}, {"requests": 39}])
def test_peers_are_run_where_asked_for_or_where_the_run_before_was_another(
    runs: Path, change: dict[str, Any]
) -> None:
    measured, _ = _measure(runs, **change)
    assert measured.policies["llm_d"].ttft_s.p50 != 123.0
    assert not measured.kept
