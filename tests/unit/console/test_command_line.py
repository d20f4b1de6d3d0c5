"""The command: help, errors as one message, commands of other packages."""

import importlib.metadata
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from console import lazy_group
from console.main import GROUP, OWN_COMMANDS, cli


def test_help_lists_every_command_with_examples():
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(command in result.output for command in OWN_COMMANDS)
    assert "Examples:" in result.output


@pytest.mark.parametrize("command", OWN_COMMANDS)
def test_every_command_explains_itself(command: str):
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_our_errors_are_one_message_and_status_1_without_a_traceback(tmp_path: Path):
    command = [sys.executable, "-m", "console.main", "status", "--state-dir", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: No stack runs from")
    assert "Traceback" not in result.stderr


def test_an_unknown_service_is_answered_with_the_known_ones():
    command = [sys.executable, "-m", "console.run", "tokenpilo"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "tokenpilot" in result.stderr


def test_a_command_that_cannot_be_imported_breaks_only_itself(monkeypatch: pytest.MonkeyPatch):
    entry = EntryPoint("wreck", "no_such_package:command", GROUP)
    real = importlib.metadata.entry_points

    def with_a_wreck(**query: str):
        return [entry] if query.get("name") == "wreck" else real(**query)

    monkeypatch.setattr(lazy_group, "entry_points", with_a_wreck)
    result = CliRunner().invoke(cli, ["wreck", "--option", "argument"])
    assert result.exit_code == 1
    assert "no_such_package" in result.output


def test_running_a_service_imports_neither_the_command_line_nor_the_servers():
    script = "import sys, console.run; print([m for m in ('click', 'rich', 'asyncpg', 'nats') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
