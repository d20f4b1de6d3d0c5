"""The design's rules 1 and 3 hold because breaking one breaks the build."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
LINT = Path(sys.executable).parent / "lint-imports"


def lint_with(tmp_path: Path, line: str, module: str) -> subprocess.CompletedProcess[str]:
    """Lint the workspace with one line added to a module of slomax."""
    package = tmp_path / "slomax"
    shutil.copytree(REPOSITORY / "services" / "slomax" / "slomax", package)
    target = package / module
    target.write_text(f"{target.read_text()}\n{line}\n")
    return subprocess.run(
        [str(LINT), "--no-cache"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("forbidden", ["asyncio", "nats", "time", "random", "tokenfleet.clock"])
def test_a_policy_that_imports_the_outside_world_fails_the_build(tmp_path: Path, forbidden: str):
    result = lint_with(tmp_path, f"import {forbidden}", "policy/classify.py")
    assert result.returncode == 1
    assert "Policies are pure: no I/O, no event loop, no clock, no global randomness BROKEN" in result.stdout


def test_a_service_that_imports_another_service_fails_the_build(tmp_path: Path):
    result = lint_with(tmp_path, "import tokenpilot.policy.choose", "main.py")
    assert result.returncode == 1
    assert "A service never imports another service BROKEN" in result.stdout
