"""One supervised child process: started, watched, restarted with back-off, stopped within a bound."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from console.child import ChildSetup
from tokenfleet.errors import TokenFleetError, UnavailableError

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
HEALTHY_AFTER_S = 30.0
READY_POLL_S = 0.02
TAIL_LINES = 5
LOG_LIMIT_BYTES = 16 << 20

Report = Callable[[str], None]


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to run and how to know that it works."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """The whole environment of the child, not an addition to this process's."""
    log_path: Path
    directory: Path | None = None
    enter: Callable[[], None] | None = None
    """Runs in the child before exec, to change who it is."""
    stop_signal: int = signal.SIGTERM
    death_signal: int = signal.SIGKILL
    """Sent to the child when this process dies without stopping it."""
    stop_timeout_s: float = 10.0
    prepare: Callable[[], None] = _nothing
    """Runs before every start."""
    ready: Callable[[], bool] | None = None
    """Polled after every start; None: running is ready."""
    ready_timeout_s: float = 30.0
    after_exit: Callable[[], None] = _nothing
    """Runs whenever the process has ended, wanted or not."""
    advice: str = ""
    """What a person can do when it does not start."""


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, indented; empty when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 8192))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def log_end(path: Path) -> str:
    """Where a log is and how it ends, for a message."""
    lines = tail(path)
    return f"Its log ({path}) ends:\n{lines}" if lines else f"Its log: {path}"


def how_it_ended(code: int) -> str:
    """An exit status in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"


class ManagedProcess:
    """Runs a `ProcessSpec` until stopped."""

    def __init__(self, spec: ProcessSpec, report: Report, on_change: Callable[[], None] = _nothing) -> None:
        self.spec = spec
        self.restarts = 0
        self._report = report
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The running process, if it runs now."""
        process = self._process
        return process.pid if process and process.returncode is None else None

    async def start(self) -> None:
        """Start, and return once ready.

        Raises:
            UnavailableError: it cannot be started, ended at once, or was not ready in time; nothing is left running.
        """
        try:
            await self._launch()
        except BaseException:
            await self._end()
            raise
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")
        self._on_change()

    async def stop(self) -> None:
        """Stop for good: the stop signal, then SIGKILL after the bound."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        await self._end()

    async def _launch(self) -> None:
        spec = self.spec
        try:
            await asyncio.to_thread(spec.prepare)
            self._process = await self._spawn()
        except subprocess.SubprocessError as error:
            raise UnavailableError(self._failure("cannot be started as the user it should run as")) from error
        except OSError as error:
            raise UnavailableError(
                f"{spec.name} cannot be started: {error}. {spec.advice}".strip()
            ) from error
        await self._until_ready(self._process)

    async def _spawn(self) -> asyncio.subprocess.Process:
        spec = self.spec
        with _open_log(spec.log_path) as log:
            return await asyncio.create_subprocess_exec(
                *spec.command,
                env=dict(spec.environment),
                cwd=spec.directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                # Its own session, so that Ctrl-C in the terminal reaches only us and we stop all in order.
                start_new_session=True,
                preexec_fn=ChildSetup(os.getpid(), spec.death_signal, spec.enter),
            )

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        spec = self.spec
        if spec.ready is None:
            return
        deadline = time.monotonic() + spec.ready_timeout_s
        while not spec.ready():
            if process.returncode is not None:
                raise UnavailableError(
                    self._failure(f"ended before it was ready ({how_it_ended(process.returncode)})")
                )
            if time.monotonic() > deadline:
                raise UnavailableError(self._failure(f"was not ready within {spec.ready_timeout_s:g} s"))
            await asyncio.sleep(READY_POLL_S)

    def _failure(self, what: str) -> str:
        message = f"{self.spec.name} {what}. {log_end(self.spec.log_path)}"
        return f"{message}\n{self.spec.advice}" if self.spec.advice else message

    async def _keep(self) -> None:
        delay_s = FIRST_DELAY_S
        while True:
            started = time.monotonic()
            if self._process is not None:
                code = await self._process.wait()
                self.spec.after_exit()
                self._on_change()
                if time.monotonic() - started > HEALTHY_AFTER_S:
                    delay_s = FIRST_DELAY_S
                self._report(
                    f"{self.spec.name} died ({how_it_ended(code)}); restarting in {delay_s:g} s. "
                    f"{log_end(self.spec.log_path)}"
                )
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            self.restarts += 1
            try:
                await self._launch()
            except TokenFleetError as error:
                self._report(str(error))
                await self._end()
            else:
                self._report(f"{self.spec.name} is running again (pid {self.pid}).")
                self._on_change()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            _signal(process, self.spec.stop_signal)
            try:
                async with asyncio.timeout(self.spec.stop_timeout_s):
                    await process.wait()
            except TimeoutError:
                self._report(
                    f"{self.spec.name} did not stop within {self.spec.stop_timeout_s:g} s; killing it."
                )
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        self.spec.after_exit()


def _signal(process: asyncio.subprocess.Process, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signum)


def _open_log(path: Path) -> BinaryIO:
    """Append to the log, after setting aside one that has grown too long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            path.replace(path.with_suffix(path.suffix + ".1"))
    return path.open("ab")
