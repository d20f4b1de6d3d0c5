"""A replay finds the running stack by what `tokenfleet up` wrote."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lab.replay.stack import running_stack
from tokenfleet.errors import ConfigurationError

UNUSED_PID = 2**22 + 1
"""Above the kernel's largest process id."""


def write_run(folder: Path, **changes: Any) -> None:
    record = {
        "pid": os.getpid(),
        "api_url": "http://127.0.0.1:8123",
        "time_scale": 5.0,
        "environment": {
            "TOKENFLEET_API_KEY": "tf-key",
            "TOKENFLEET_SITE": "west",
            "TOKENFLEET_NATS_URL": "nats://127.0.0.1:4333",
            "TOKENFLEET_NATS_USER": "operator",
            "TOKENFLEET_NATS_PASSWORD": "secret",
            "TOKENFLEET_OF_A_LATER_VERSION": "1",
        },
        "nats_logins": {},
        "postgres_dsn": "postgresql:///tokenfleet",
        "processes": [],
    }
    (folder / "run.json").write_text(json.dumps(record | changes))


def test_a_running_stack_is_joined_as_the_operator(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENFLEET_NATS_URL", "nats://elsewhere:1")
    write_run(tmp_path)
    stack = running_stack(tmp_path)
    assert stack is not None
    assert (stack.api_url, stack.api_key, stack.time_scale) == ("http://127.0.0.1:8123", "tf-key", 5.0)
    settings = stack.settings
    assert (settings.site, settings.nats_url, settings.nats_user) == (
        "west",
        "nats://127.0.0.1:4333",
        "operator",
    )
    assert settings.nats_password is not None
    assert settings.nats_password.get_secret_value() == "secret"


def test_without_a_record_or_with_that_of_a_dead_process_none_runs(tmp_path):
    assert running_stack(tmp_path) is None
    write_run(tmp_path, pid=UNUSED_PID)
    assert running_stack(tmp_path) is None


def test_a_record_that_cannot_be_read_is_told(tmp_path):
    write_run(tmp_path)
    (tmp_path / "run.json").write_text('{"pid": ')
    with pytest.raises(ConfigurationError, match=r"run\.json"):
        running_stack(tmp_path)
