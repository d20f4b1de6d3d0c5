"""A whole stack for end-to-end and fault tests, started by the command a user would type."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tokenfleet.settings import Settings

TOKENFLEET = Path(sys.executable).parent / "tokenfleet"


def until(condition: Callable[[], Any], timeout_s: float = 20.0, every_s: float = 0.1) -> Any:
    """What `condition` returns once it is true; fails the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(every_s)


@dataclass
class RunningStack:
    """`tokenfleet up` as a child process, and the files it leaves for other commands."""

    process: subprocess.Popen[bytes]
    state_dir: Path

    @property
    def run(self) -> dict[str, Any]:
        return json.loads((self.state_dir / "run.json").read_text())

    @property
    def api_url(self) -> str:
        return self.run["api_url"]

    @property
    def api_key(self) -> str:
        return self.run["environment"]["TOKENFLEET_API_KEY"]

    @property
    def environment(self) -> dict[str, str]:
        """What a command that should find this stack runs with."""
        return {**os.environ, "TOKENFLEET_STATE_DIR": str(self.state_dir)}

    def settings(self) -> Settings:
        """The operator's connection."""
        prefix = "TOKENFLEET_"
        values = {name.removeprefix(prefix).lower(): value for name, value in self.run["environment"].items()}
        return Settings(**values)

    def pid(self, name: str) -> int | None:
        return next(entry["pid"] for entry in self.run["processes"] if entry["name"] == name)

    def log(self, name: str) -> str:
        return (self.state_dir / "logs" / f"{name}.log").read_text()

    def kill(self, name: str) -> int:
        """SIGKILL a process of the stack; returns its pid."""
        pid = self.pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_restarted(self, name: str, old_pid: int) -> None:
        until(lambda: self.pid(name) not in (None, old_pid))

    def health(self) -> dict[str, Any] | None:
        try:
            return httpx.get(f"{self.api_url}/health", timeout=2.0).json()
        except httpx.HTTPError:
            return None

    def wait_ready(self, instances: int, timeout_s: float = 30.0) -> None:
        """Until ingress answers and knows that many ready instances."""

        def ready() -> bool:
            health = self.health()
            return health is not None and health["instances"]["ready"] >= instances

        until(ready, timeout_s)

    def command(self, *arguments: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run a `tokenfleet` command against this stack."""
        return subprocess.run(
            [str(TOKENFLEET), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start_command(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a `tokenfleet` command against this stack and leave it running."""
        return subprocess.Popen(
            [str(TOKENFLEET), *arguments],
            env={**self.environment, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def start_stack(state_dir: Path, *arguments: str, **environment: str) -> RunningStack:
    """`tokenfleet up` on free ports; returns once requests can be served."""
    log = state_dir.parent / f"{state_dir.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(TOKENFLEET), "up", "--port", "0", "--state-dir", str(state_dir), *arguments],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def up() -> bool:
        assert process.poll() is None, log.read_text()
        return "TokenFleet is up" in log.read_text()

    until(up, timeout_s=90.0, every_s=0.25)
    return RunningStack(process, state_dir)
