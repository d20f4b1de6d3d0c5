"""What a running stack recorded is run again in the simulator, asked for as an operator asks for it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_stack import TOKENFLEET, RunningStack, start_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(230)]

ENGINES = 4
REQUESTS = 300


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    stack = start_stack(
        tmp_path_factory.mktemp("whatif") / "state",
        *("--engines", str(ENGINES), "--model", "llama-70b", "--time-scale", "10"),
    )
    stack.wait_ready(ENGINES)
    subprocess.run(
        [
            *(str(TOKENFLEET), "replay", "generated", "--requests", str(REQUESTS), "--speed", "0.8"),
            *("--model", "llama-70b"),
        ],
        env=stack.environment,
        check=True,
        capture_output=True,
        timeout=180,
    )
    yield stack
    stack.stop()


def whatif(stack: RunningStack, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the JSON of a what-if over all that was recorded."""
    output = tmp_path / "whatif.json"
    ended = stack.command("audit", "whatif", "--from", "1h", "--seeds", "3", "--json", str(output), *options)
    assert output.exists(), ended.stdout + ended.stderr
    return ended.returncode, json.loads(output.read_text())


def test_the_live_policy_run_again_gives_the_goodput_that_was_recorded(stack: RunningStack, tmp_path: Path):
    status, figures = whatif(stack, tmp_path)
    assert status == 0, figures
    assert figures["requests"] == figures["recorded"]["offered"] == REQUESTS
    assert figures["trust"]["trusted"]
    assert (
        abs(figures["rerun"]["goodput_tokens_per_s"] / figures["recorded"]["goodput_tokens_per_s"] - 1)
        <= 0.05
    )


def test_half_the_fleet_would_have_kept_fewer_promises(stack: RunningStack, tmp_path: Path):
    _, figures = whatif(stack, tmp_path, "--instances", str(ENGINES // 2))
    assert list(figures["instances"].values()) == [[ENGINES, ENGINES // 2]]
    assert figures["what_if"]["attainment_offered"] < figures["rerun"]["attainment_offered"]


def test_another_policy_is_read_from_its_file(stack: RunningStack, tmp_path: Path):
    policy = tmp_path / "open.toml"
    policy.write_text("admission = false\n")
    _, figures = whatif(stack, tmp_path, "--policy", str(policy))
    assert figures["settings"] == {"admission": [True, False]}
    assert figures["what_if"]["refused"] == 0
