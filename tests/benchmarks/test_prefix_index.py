"""The prefix index with 10 million blocks, side by side with NVIDIA Dynamo's `RadixTree` on the same ones.

CPU time per lookup of a 200-block prompt, each a different one; Dynamo's without the conversion of its answer into
a dict. Each prompt has been looked up once before, which joins short runs in this project's index. Each index has
one CPU, which suits Dynamo's better than two. Dynamo's rows need `make dynamo`.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cpu import cpu_per_unit, metered
from benchmarks.held_blocks import LOOKUPS

BLOCKS = 10_000_000
MEMORY_BAR_MIB = 2048
ROUNDS = 15
HERE = Path(__file__).parent
DYNAMO_PYTHON = HERE.parents[1] / ".tools" / "dynamo" / "bin" / "python"


class Index:
    """An index that holds the blocks, in a process of its own; see `held_blocks.serve`."""

    def __init__(self, python: str, script: str, instances: int) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / script), str(instances), str(BLOCKS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *command: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


Indexes = dict[str, Index]


@pytest.fixture(scope="module", params=[64, 1_000])
def indexes(request: pytest.FixtureRequest) -> Iterator[Indexes]:
    """By name; only ours where Dynamo is not installed."""
    started = {"tokenfleet": Index(sys.executable, "tokenfleet_index.py", request.param)}
    if DYNAMO_PYTHON.exists():
        started["dynamo"] = Index(str(DYNAMO_PYTHON), "dynamo_index.py", request.param)
    yield started
    for index in started.values():
        index.close()


@pytest.mark.timeout(900)
@pytest.mark.benchmark(timer=cpu_per_unit)
@pytest.mark.parametrize("kind", ["full match", "shared system prompt", "miss"])
@pytest.mark.parametrize("name", ["tokenfleet", "dynamo"])
def test_lookup(benchmark, request: pytest.FixtureRequest, indexes: Indexes, name: str, kind: str):
    if name not in indexes:
        pytest.skip("Dynamo is not installed: make dynamo")
    memory_mib = {name: index.ask("memory") for name, index in indexes.items()}
    assert memory_mib["tokenfleet"] <= MEMORY_BAR_MIB
    assert indexes[name].ask("depths", kind) == indexes["tokenfleet"].ask("depths", kind)
    held = " and ".join(f"{mib:,.0f} MiB ({name})" for name, mib in memory_mib.items())
    instances = request.node.callspec.params["indexes"]
    benchmark.group = f"prefix index: {kind}, {instances:,} instances, {BLOCKS:,} blocks in {held}"
    index = indexes[name]
    with metered(LOOKUPS, lambda: index.ask("cpu")):
        benchmark.pedantic(index.ask, ["find", kind], rounds=ROUNDS, warmup_rounds=1)
