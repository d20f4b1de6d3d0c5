"""Processes of the lab's own that must not outlive it."""

import asyncio
import ctypes
import signal

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent() -> None:
    """In the child: be asked to stop if its parent is killed, so that nothing is left behind."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


async def stop(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    """Ask a process to stop; end it if it has not after `timeout_s`."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
