"""Any process may be killed while requests flow: the replay ends, nothing is lost, nothing counted twice."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from running_stack import TOKENFLEET, RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ENGINES = 4
REQUESTS = 40
OUTCOMES = ("completed", "rejected", "timed_out", "cancelled", "failed")
PROCESSES = [
    "ingress",
    "fleetmind",
    "slomax",
    "tokenpilot",
    "telemetry-collector",
    "goodput-accountant",
    "node-agent-node-1",
    "engine-1",
    "nats",
    "postgres",
]


def start_replay(stack: RunningStack, output: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(str(TOKENFLEET), "replay", "generated", "--requests", str(REQUESTS), "--speed", "1.5"),
            *("--model", "llama-70b", "--json", str(output)),
        ],
        env=stack.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(replay: subprocess.Popen[str], output: Path) -> dict[str, Any]:
    text, _ = replay.communicate(timeout=150)
    assert replay.returncode == 0, text
    return json.loads(output.read_text())


def check_accounted(report: dict[str, Any]) -> None:
    assert report["offered"] == REQUESTS == report["ledger_rows"]
    assert sum(report[outcome] for outcome in OUTCOMES) == REQUESTS
    assert report["missing"] == report["duplicated"] == []


@pytest.mark.parametrize("name", PROCESSES)
def test_a_killed_process_loses_no_request(running_stack: RunningStack, tmp_path: Path, name: str):
    running_stack.wait_ready(ENGINES)
    replay = start_replay(running_stack, tmp_path / "out.json")
    time.sleep(2.0)
    killed = running_stack.kill(name)
    report = finish(replay, tmp_path / "out.json")
    check_accounted(report)
    if name not in ("ingress", "engine-1"):  # those two take the answers they were streaming with them
        assert report["failed"] == 0, report
    running_stack.wait_restarted(name, killed)


def test_of_two_replicas_one_decides_and_the_other_takes_over(running_stack: RunningStack, tmp_path: Path):
    running_stack.wait_ready(ENGINES)
    standbys = [running_stack.start_command("run", name) for name in ("slomax", "tokenpilot", "fleetmind")]
    try:
        time.sleep(3.0)
        replay = start_replay(running_stack, tmp_path / "out.json")
        time.sleep(2.0)
        for name in ("slomax", "tokenpilot", "fleetmind"):
            running_stack.kill(name)
        report = finish(replay, tmp_path / "out.json")
        check_accounted(report)
        assert report["failed"] == 0
        assert report["completed"] + report["rejected"] == REQUESTS
    finally:
        for standby in standbys:
            standby.terminate()
            standby.wait(timeout=10)
