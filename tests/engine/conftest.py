"""Two real vLLM engines behind a whole stack. Only `make test-engine` runs these tests.

It sets TOKENFLEET_TEST_VLLM to an environment that has vLLM; without that, nothing here is collected.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from engine.fleet_observer import FleetObserver
from engine.vllm_engine import MODEL, VllmEngine, say
from engine.world import World
from running_stack import start_stack

VARIABLE = "TOKENFLEET_TEST_VLLM"

PATIENCE = {
    "TOKENFLEET_INGRESS_DECISION_TIMEOUT_S": "10",
    "TOKENFLEET_INGRESS_TOKENIZE_TIMEOUT_S": "10",
    "TOKENFLEET_SCRAPE_TIMEOUT_S": "5",
}
"""Two engines and a whole stack share what may be two cores; what is tested here is not how fast they are."""

collect_ignore_glob = [] if os.environ.get(VARIABLE) else ["test_*.py"]


def pytest_sessionstart() -> None:
    """Being told to end ends in an orderly way: pytest alone would leave the engines running."""
    if os.environ.get(VARIABLE):
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model made on the spot, by the Python that has its libraries."""
    folder = tmp_path_factory.mktemp("model")
    python = Path(os.environ[VARIABLE]) / "bin" / "python"
    subprocess.run([str(python), str(Path(__file__).parent / "tiny_model.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def world(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Both engines ready and known to every service."""
    folder = tmp_path_factory.mktemp("engines")
    environment = Path(os.environ[VARIABLE]).resolve()
    engines = {
        name: VllmEngine(name, environment, model_folder, folder / f"{name}.log", hash_seed=number)
        for number, name in enumerate(("vllm-1", "vllm-2"), start=1)
    }
    try:
        for engine in engines.values():
            engine.start()
        for engine in engines.values():
            engine.wait_ready()
        yield from _serve(engines, model_folder, tmp_path_factory.mktemp("stack") / "state")
    finally:
        for engine in engines.values():
            engine.stop()


def _serve(engines: dict[str, VllmEngine], model_folder: Path, state_dir: Path) -> Iterator[World]:
    started_s = time.monotonic()
    stack = start_stack(
        state_dir,
        *("--no-engines", "--nodes", "1"),
        TOKENFLEET_INGRESS_TOKENIZERS=json.dumps({f"{MODEL}@1": str(model_folder)}),
        **PATIENCE,
    )
    try:
        observer = FleetObserver(stack.settings())
        try:
            world = World(stack, observer, engines)
            for engine in engines.values():
                world.register(engine)
            stack.wait_ready(len(engines))
            say(f"TokenFleet ready after {time.monotonic() - started_s:.0f} s")
            yield world
        finally:
            observer.close()
    finally:
        stack.stop()
