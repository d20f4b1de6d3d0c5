"""`.env.example`: everything that docker-compose.yml asks for, no secret in it, and a line that makes the secrets."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from unit.infra.deployment import REPOSITORY, optional_variables, required_variables

EXAMPLE = REPOSITORY / ".env.example"
ASSIGNMENT = re.compile(r"^(#?)([A-Z_]+)=(.*)$", re.MULTILINE)


@pytest.fixture
def filled(tmp_path: Path) -> dict[str, str]:
    """The `.env` that the command in its first lines makes."""
    (command,) = re.findall(r"^# +(\(umask .*\.env\))$", EXAMPLE.read_text(), re.MULTILINE)
    shutil.copy(EXAMPLE, tmp_path)
    subprocess.run(["/bin/sh", "-euc", command], cwd=tmp_path, check=True)
    made = tmp_path / ".env"
    assert made.stat().st_mode & 0o077 == 0
    return {name: value for comment, name, value in ASSIGNMENT.findall(made.read_text()) if not comment}


def test_it_asks_for_each_secret_that_compose_needs_and_contains_none():
    asked_for = {
        name: value for comment, name, value in ASSIGNMENT.findall(EXAMPLE.read_text()) if not comment
    }

    assert asked_for == dict.fromkeys(required_variables(), "")


def test_it_shows_the_default_of_every_option():
    shown = {name: value for comment, name, value in ASSIGNMENT.findall(EXAMPLE.read_text()) if comment}
    off_unless_set = {name for name, default in optional_variables().items() if not default}

    for name, default in optional_variables().items():
        if name not in off_unless_set:
            assert shown[name] == default


def test_its_command_gives_every_secret_a_value_of_its_own(filled: dict[str, str]):
    assert filled.keys() == required_variables()
    assert len(set(filled.values())) == len(filled)


def test_its_secrets_suit_the_nats_configuration_and_an_address(filled: dict[str, str]):
    for value in filled.values():
        assert re.fullmatch(r"[a-z][a-z0-9]{32,}", value)


def test_the_file_with_the_secrets_gets_into_no_image():
    lines = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] != "#"]

    # Everything is left out but a list of folders.
    assert lines[0] == "*"
    assert not [line for line in lines if line.startswith("!") and ".env" in line]
