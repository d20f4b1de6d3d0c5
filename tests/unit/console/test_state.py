"""The state folder: one stack at a time, secrets made once and private."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from console.state import StateFolder
from tokenfleet.errors import ConfigurationError, UnavailableError
from tokenfleet.running_stack import RunRecord

USERS = ("ingress", "operator")


def record(pid: int) -> RunRecord:
    return RunRecord(
        pid=pid,
        api_url="http://127.0.0.1:1",
        time_scale=1.0,
        environment={},
        nats_logins={},
        postgres_dsn="postgresql://",
    )


def test_a_second_stack_on_the_same_folder_is_refused_and_told_who_runs_there(tmp_path: Path):
    first = StateFolder(tmp_path)
    first.lock()
    with pytest.raises(ConfigurationError, match=rf"already runs.*pid {os.getpid()}"):
        StateFolder(tmp_path).lock()
    first.unlock()
    StateFolder(tmp_path).lock()


def test_the_lock_goes_with_the_process_that_held_it_however_that_ended(tmp_path: Path):
    script = "import os, sys; from pathlib import Path; from console.state import StateFolder; "
    script += "StateFolder(Path(sys.argv[1])).lock(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    StateFolder(tmp_path).lock()


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file/state"):
        StateFolder(tmp_path / "file" / "state").lock()


def test_secrets_are_made_once_and_only_the_owner_can_read_them(tmp_path: Path):
    state = StateFolder(tmp_path)
    made = state.secrets(USERS)
    key = state.api_key()
    assert StateFolder(tmp_path).secrets(USERS) == made
    assert StateFolder(tmp_path).api_key() == key
    assert key.startswith("tf-")
    for name in ("secrets.json", "api-key"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_a_user_added_later_gets_a_password_and_the_others_keep_theirs(tmp_path: Path):
    before = StateFolder(tmp_path).secrets(USERS)
    after = StateFolder(tmp_path).secrets((*USERS, "newcomer"))
    assert after.block_secret == before.block_secret
    assert after.nats_passwords.items() > before.nats_passwords.items()


def test_passwords_are_words_to_the_nats_config_which_would_read_digits_as_numbers(tmp_path: Path):
    passwords = StateFolder(tmp_path).secrets(USERS).nats_passwords.values()
    assert all(password[0].isalpha() and password.isalnum() for password in passwords)


def test_a_running_stack_is_found_until_it_stops(tmp_path: Path):
    state = StateFolder(tmp_path)
    state.write_run(record(os.getpid()))
    assert state.running() == record(os.getpid())
    state.remove_run()
    with pytest.raises(UnavailableError, match="tokenfleet up"):
        state.running()


def test_the_record_of_a_killed_stack_counts_as_none(tmp_path: Path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    state = StateFolder(tmp_path)
    state.write_run(record(ended.pid))
    assert state.read_run() is None


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"run\.json"):
        StateFolder(tmp_path).read_run()
