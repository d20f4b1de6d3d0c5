"""One emulated engine as a process, for the time of a comparison."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from lab.child import end_with_parent, stop
from lab.errors import TrustError
from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.engine.profile import PROFILES

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.05


class _Ready(msgspec.Struct, frozen=True):
    """What the engine says of itself in its ready file."""

    url: str
    model: str
    profile: str
    block_size_tokens: int


class RunningEngine(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the engine, and what it models."""

    url: str
    model: str
    time_scale: float
    profile: EngineProfile
    block_tokens: int


@asynccontextmanager
async def emulated_engine(time_scale: float) -> AsyncIterator[RunningEngine]:
    """An engine of the reference profile, running `time_scale` times as fast as real time.

    Raises:
        TrustError: it did not start; the message ends with its log.
    """
    with tempfile.TemporaryDirectory(prefix="tokenfleet-trust-") as folder:
        ready_file, log_file = Path(folder) / "engine.json", Path(folder) / "engine.log"
        process = await _start(time_scale, ready_file, log_file)
        try:
            ready = await _until_ready(process, ready_file, log_file)
            yield RunningEngine(
                url=ready.url,
                model=ready.model,
                time_scale=time_scale,
                profile=PROFILES[ready.profile],
                block_tokens=ready.block_size_tokens,
            )
        finally:
            await stop(process, STOP_TIMEOUT_S)


async def _start(time_scale: float, ready_file: Path, log_file: Path) -> asyncio.subprocess.Process:
    command = Path(sys.executable).with_name("tokenfleet")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOKENFLEET_")}
    settings = {"TOKENFLEET_TIME_SCALE": str(time_scale), "TOKENFLEET_ENGINE_READY_FILE": str(ready_file)}
    with log_file.open("ab") as log:
        try:
            return await asyncio.create_subprocess_exec(
                command,
                "run",
                "emulated-engine",
                env=inherited | settings,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            raise TrustError(f"{command} cannot be started: {error}. Is TokenFleet installed?") from error


async def _until_ready(process: asyncio.subprocess.Process, ready_file: Path, log_file: Path) -> _Ready:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_TIMEOUT_S):
            while process.returncode is None:
                if content := await asyncio.to_thread(_content, ready_file):
                    return msgspec.json.decode(content, type=_Ready)
                await asyncio.sleep(POLL_S)
    log = await asyncio.to_thread(_content, log_file)
    raise TrustError(f"The emulated engine did not start:\n{log.decode(errors='replace').strip()}")


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
