"""CPU time as the clock of a benchmark, per unit of work, of this process or of a child that serves it.

Wall time says little on a machine that others use, and the process that asks is not the one to be judged.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import uvloop

START_TIMEOUT_S = 30.0

_read_cpu_s: Callable[[], float] = time.process_time
_units = 1


def cpu_per_unit() -> float:
    """The timer to give to `pytest.mark.benchmark`; see `metered`."""
    return _read_cpu_s() / _units


@contextmanager
def metered(units: int, cpu_s: Callable[[], float] = time.process_time) -> Iterator[None]:
    """Make `cpu_per_unit` read the CPU seconds that `cpu_s` tells, over so many units of work a round."""
    global _read_cpu_s, _units
    _read_cpu_s, _units = cpu_s, units
    try:
        yield
    finally:
        _read_cpu_s, _units = time.process_time, 1


@dataclass(frozen=True, slots=True)
class Server:
    """A child process that serves."""

    pipe: Connection
    address: Any
    """What its `serve` yielded."""

    def cpu_s(self) -> float:
        """CPU seconds it has used so far, all threads."""
        self.pipe.send("cpu")
        return self.pipe.recv()


Serve = Callable[..., AbstractAsyncContextManager[Any]]


@contextmanager
def serving(serve: Serve, *args: Any) -> Iterator[Server]:
    """Run `serve(*args)`, a module-level async context manager, in a process of its own on uvloop."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_run, args=(theirs, serve, args), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(START_TIMEOUT_S), "the server did not start"
        yield Server(ours, ours.recv())
    finally:
        ours.close()
        process.join(timeout=5.0)
        process.kill()


def _run(pipe: Connection, serve: Serve, args: tuple[Any, ...]) -> None:
    uvloop.run(_serve(pipe, serve, args))


async def _serve(pipe: Connection, serve: Serve, args: tuple[Any, ...]) -> None:
    asked = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), asked.set)
    async with serve(*args) as address:
        pipe.send(address)
        while True:
            await asked.wait()
            asked.clear()
            try:
                pipe.recv()
            except EOFError:
                return
            pipe.send(time.process_time())
