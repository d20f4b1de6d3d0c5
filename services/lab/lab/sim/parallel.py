"""Several simulations at once, each in a process of its own."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_int64
from typing import Any, TypeVar

from lab.child import end_with_parent
from lab.errors import SimulationError
from lab.sim.simulator import Progress

LOOK_S = 0.2
"""How often the progress of the processes is looked at."""

Watch = Callable[[str, int], None]
"""Told what is being done, and how many requests have ended."""

TaskT = TypeVar("TaskT", bound=Hashable)
ResultT = TypeVar("ResultT")


def run_all(
    run: Callable[[TaskT, Progress], ResultT],
    tasks: Sequence[TaskT],
    watch: Watch,
    processes: int | None = None,
) -> dict[TaskT, ResultT]:
    """What `run` returns for each task. Whatever it refers to is there in every process without being copied.

    Args:
        run: one simulation; it tells how many of its requests have ended.
        tasks: small values.
        watch: told of the progress of all of them.
        processes: how many at once; as many as there are cores if None.

    Raises:
        SimulationError: a process was killed.
    """
    # Forked children start at once and share what is loaded; nothing here has threads yet.
    context = multiprocessing.get_context("fork")
    counter = context.Value(c_int64, 0)
    results: dict[TaskT, ResultT] = {}
    workers = min(processes or os.cpu_count() or 1, len(tasks))
    with ProcessPoolExecutor(workers, context, initializer=_begin_worker, initargs=(counter, run)) as pool:
        running = {pool.submit(_run_task, task): task for task in tasks}
        try:
            while running:
                ended, _ = wait(running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                for future in ended:
                    results[running.pop(future)] = future.result()
                watch(f"{len(results)} of {len(tasks)} runs", counter.value)
        except BrokenProcessPool as error:
            raise SimulationError(
                "A process that simulated was killed, perhaps for want of memory: try fewer requests at a time, or "
                "close what else runs here"
            ) from error
        except BaseException:
            # Runs take minutes: whoever presses Ctrl-C does not want to wait for their end.
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    return results


_counter: Any = None
_run: Any = None


def _begin_worker(counter: Any, run: Any) -> None:
    """In a worker process: where its progress is added up, and that it ends when its parent says so or is gone."""
    global _counter, _run
    _counter, _run = counter, run
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _run_task(task: Any) -> Any:
    seen = 0

    def progressed(ended: int) -> None:
        nonlocal seen
        with _counter.get_lock():
            _counter.value += ended - seen
        seen = ended

    return _run(task, progressed)
