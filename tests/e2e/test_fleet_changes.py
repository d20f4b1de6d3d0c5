"""Instances come, go and die while everything else keeps running."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from running_stack import RunningStack, until

pytestmark = pytest.mark.e2e


def fleet(stack: RunningStack) -> dict[str, dict[str, Any]]:
    """Each instance as the telemetry collector reports it."""
    address = re.findall(r"'127\.0\.0\.1', (\d+)", stack.log("telemetry-collector"))[-1]
    pools = httpx.get(f"http://127.0.0.1:{address}/v1/fleet", timeout=5.0).json()
    return {instance["instance"]: instance for pool in pools for instance in pool["instances"]}


def test_an_engine_joins_and_leaves_without_a_restart(running_stack: RunningStack):
    running_stack.wait_ready(4)
    before = {entry["name"]: entry["pid"] for entry in running_stack.run["processes"]}
    folder = running_stack.state_dir / "engines" / "node-1"
    ready_file = folder / "newcomer.json"
    engine = running_stack.start_command(
        "run",
        "emulated-engine",
        TOKENFLEET_ENGINE_MODEL="late-model",
        TOKENFLEET_ENGINE_VERSION="7",
        TOKENFLEET_ENGINE_READY_FILE=str(ready_file),
    )
    try:
        until(lambda: "late-model" in str(running_stack.health()), timeout_s=20.0)
        answer = None
        for _ in range(20):  # the deciders hear of the pool within a second or two
            answer = httpx.post(
                f"{running_stack.api_url}/v1/completions",
                headers={"Authorization": f"Bearer {running_stack.api_key}"},
                json={"model": "late-model@7", "prompt": "hello", "max_tokens": 3},
                timeout=30.0,
            )
            if answer.status_code == 200:
                break
            time.sleep(0.25)
        assert answer is not None and answer.status_code == 200, answer
        assert answer.headers["x-tokenfleet-instance"] == "newcomer"
    finally:
        ready_file.unlink(missing_ok=True)
        engine.terminate()
        engine.wait(timeout=10)
    until(lambda: "late-model" not in str(running_stack.health()))
    after = {entry["name"]: entry["pid"] for entry in running_stack.run["processes"]}
    assert after == before


def test_a_stopped_engine_is_found_dead_within_two_seconds_and_alive_again_after(running_stack: RunningStack):
    running_stack.wait_ready(4)
    pid = running_stack.pid("engine-2")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # hung, not gone: the supervisor does not restart it
    stopped = time.monotonic()
    try:
        until(lambda: fleet(running_stack)["engine-2"]["liveness"] == "dead", timeout_s=6.0, every_s=0.05)
        assert time.monotonic() - stopped < 4.0
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: fleet(running_stack)["engine-2"]["liveness"] == "alive")


def test_a_second_stack_on_the_same_state_folder_is_refused(running_stack: RunningStack, tmp_path: Path):
    result = running_stack.command("up", "--port", "0", "--state-dir", str(running_stack.state_dir))
    assert result.returncode != 0
    assert "already runs" in result.stdout + result.stderr
