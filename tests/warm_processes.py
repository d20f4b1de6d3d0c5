"""Services as processes of their own that start at once: forked from one that has imported them already."""

import importlib
import multiprocessing
import os
from multiprocessing.process import BaseProcess

_FORKING = multiprocessing.get_context("forkserver")


def start_service(module: str, environment: dict[str, str]) -> BaseProcess:
    """Run a service's `main`, say of `tokenpilot.main`; kill the process when it is no longer needed."""
    _FORKING.set_forkserver_preload([module])
    process = _FORKING.Process(target=_run, args=(module, environment), daemon=True)
    process.start()
    return process


def _run(module: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    importlib.import_module(module).main()
