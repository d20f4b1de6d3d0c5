"""`tokenfleet up`: starts, stops without a trace, and finds its data again."""

import os
import signal
from pathlib import Path

import httpx2 as httpx
import pytest
from ledger_rows import row_of
from running_stack import RunningStack, start_stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def processes_of(state_dir: Path) -> list[str]:
    """Command lines of the processes that belong to a stack."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        marker = str(state_dir).encode()
        if marker in environment or marker in command:
            found.append(command.decode(errors="replace"))
    return found


def complete(stack: RunningStack, name: str) -> None:
    answer = httpx.post(
        f"{stack.api_url}/v1/completions",
        headers={"Authorization": f"Bearer {stack.api_key}", "x-request-id": name},
        json={"model": "llama-70b", "prompt": "hello", "max_tokens": 3},
        timeout=30.0,
    )
    assert answer.status_code == 200, answer.text


def start(state_dir: Path) -> RunningStack:
    return start_stack(state_dir, "--engines", "1", "--nodes", "1", "--time-scale", "10")


def test_ctrl_c_leaves_no_process_and_the_next_start_finds_its_data_and_its_key(tmp_path: Path):
    state_dir = tmp_path / "state"
    stack = start(state_dir)
    try:
        key = stack.api_key
        complete(stack, "before")
        until(lambda: row_of(stack, "before"))
        assert processes_of(state_dir)
    finally:
        stack.stop()
    assert stack.process.returncode == 0
    assert processes_of(state_dir) == []

    stack = start(state_dir)
    try:
        assert stack.api_key == key
        assert row_of(stack, "before") is not None
        complete(stack, "after")
        until(lambda: row_of(stack, "after"))
    finally:
        stack.process.send_signal(signal.SIGKILL)  # not even a killed `up` leaves anything behind
        stack.process.wait()
    until(lambda: processes_of(state_dir) == [], timeout_s=15.0)
