"""`tokenfleet lab run` as its user sees it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
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


def test_equal_runs_are_equal_bytes_wherever_they_are_written(tmp_path: Path) -> None:
    asked = ("run", "routing", "--trace", "generated:chat?rate=5", "--requests", "40", "-p", "random")
    written: list[bytes] = []
    for name in ("one.json", "other.json"):
        assert invoke(*asked, "--seeds", "2", "--json", str(tmp_path / name)).exit_code == 0
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    assert json.loads(written[0])["run"]["command"] == (
        "tokenfleet lab run routing --seeds 2 --policy random --trace 'generated:chat?rate=5' --requests 40"
    )


def test_policies_may_be_listed_in_one_word(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    asked = ("run", "routing", "--trace", "generated", "--requests", "20", "--processes", "1")
    result = invoke(*asked, "--policies", "random,round_robin", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert list(json.loads(out.read_text())["policies"]) == ["random", "round_robin"]


@pytest.mark.parametrize("speed", ["nan", "inf", "-1", "0", "1e-9"])
def test_a_speed_that_is_none_is_refused_before_anything_runs(speed: str) -> None:
    result = invoke("run", "routing", "--trace", "generated", "--requests", "5", "--speed", speed)
    assert result.exit_code == 2
    assert "--speed" in result.output


def test_a_plot_folder_that_cannot_be_made_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = invoke("run", "routing", "--trace", "generated", "--plot", str(tmp_path / "file" / "plots"))
    assert result.exit_code == 2
    assert "--plot" in result.output


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_a_run_that_is_stopped_ends_at_once_and_leaves_no_process(how: signal.Signals) -> None:
    tokenfleet = str(Path(sys.executable).with_name("tokenfleet"))
    endless = ("--trace", "generated?requests=200000", "-p", "random", "-p", "round_robin")
    run = subprocess.Popen(
        (tokenfleet, "lab", "run", "routing", *endless),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # A shell's background jobs ignore Ctrl-C, and so would their children, this one too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        workers = _until(lambda: _children(run.pid))
        time.sleep(0.5)  # They begin their runs.
        run.send_signal(how)
        _, errors = run.communicate(timeout=20)
        assert run.returncode != 0
        assert b"Traceback" not in errors
        assert _until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    finally:
        run.kill()


def _children(pid: int) -> list[int]:
    stats = (entry / "stat" for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found: list[int] = []
    for stat in stats:
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It ended meanwhile.
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def _until(condition):
    """What the condition says as soon as it says something."""
    for _ in range(600):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen within 30 s")


def test_the_scenarios_are_listed() -> None:
    result = invoke("scenarios")
    assert result.exit_code == 0
    assert "multisite" in result.output
