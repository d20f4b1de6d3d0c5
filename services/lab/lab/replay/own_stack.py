"""A stack for one replay: started by `tokenfleet up` in a folder of its own, stopped and cleared afterwards."""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from lab.child import end_with_parent, stop
from lab.errors import ReplayError
from lab.replay.stack import Stack, running_stack
from tokenfleet.errors import TokenFleetError

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.2
LOG_FILE = "up.log"
LOG_LINES = 15


class _Instances(msgspec.Struct, frozen=True):
    ready: int


class _Health(msgspec.Struct, frozen=True):
    """What ingress says of the fleet."""

    instances: _Instances


@asynccontextmanager
async def own_stack(time_scale: float, engines: int) -> AsyncIterator[Stack]:
    """A fleet of emulated engines for the time of the body.

    Raises:
        ReplayError: it did not come up, or the body failed; its folder, with all logs, is kept and named.
    """
    folder = Path(tempfile.mkdtemp(prefix="tokenfleet-replay-"))
    process: asyncio.subprocess.Process | None = None
    keep = False
    try:
        process = await _start(folder, time_scale, engines)
        yield await _until_up(process, folder, engines)
    except TokenFleetError as error:
        keep = True
        raise ReplayError(f"{error}\nThe stack's files, with all logs, are kept in {folder}.") from error
    finally:
        if process:
            await stop(process, STOP_TIMEOUT_S)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


async def _start(folder: Path, time_scale: float, engines: int) -> asyncio.subprocess.Process:
    command = Path(sys.executable).with_name("tokenfleet")
    arguments = ("up", "--time-scale", str(time_scale), "--engines", str(engines), "--port", "0")
    with (folder / LOG_FILE).open("ab") as log:
        try:
            return await asyncio.create_subprocess_exec(
                command,
                *arguments,
                env={**os.environ, "TOKENFLEET_STATE_DIR": str(folder)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                # Its own session: Ctrl-C reaches only the replay, which restores the policy and then stops it.
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            raise ReplayError(f"{command} cannot be started: {error}. Is TokenFleet installed?") from error


async def _until_up(process: asyncio.subprocess.Process, folder: Path, engines: int) -> Stack:
    problem = f"was not up within {START_TIMEOUT_S:g} s"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession() as session:
            while process.returncode is None:
                stack = running_stack(folder)
                if stack and await _ready_engines(session, stack.api_url) >= engines:
                    return stack
                await asyncio.sleep(POLL_S)
            problem = f"ended with status {process.returncode}"
    log = await asyncio.to_thread((folder / LOG_FILE).read_text, errors="replace")
    shown = "\n".join(f"    {line}" for line in log.splitlines()[-LOG_LINES:])
    raise ReplayError(f"The replay's own stack {problem}. Its log ends:\n{shown}")


async def _ready_engines(session: aiohttp.ClientSession, api_url: str) -> int:
    """How many engines ingress knows; 0 while it does not answer."""
    with contextlib.suppress(aiohttp.ClientError, OSError, msgspec.MsgspecError):
        async with session.get(f"{api_url}/health") as response:
            return msgspec.json.decode(await response.read(), type=_Health).instances.ready
    return 0
