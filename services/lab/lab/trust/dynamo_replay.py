"""NVIDIA Dynamo's offline replay: installed beside the product, run as a process, its requests read back.

It is never a dependency. `install` puts it into an environment of its own, from pinned hashes.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.errors import TrustError
from lab.traces.model import Trace
from lab.trust import dynamo_script
from lab.trust.dynamo_engine import ReplayEngine
from lab.trust.served import Served

LAB = Path(__file__).resolve().parents[2]
REQUIREMENTS = LAB / "dynamo-requirements.txt"
ENVIRONMENT = LAB.parent.parent / ".tools" / "dynamo"
PYTHON_VERSION = "3.11"
TIMEOUT_S = 600.0

Router = Literal["round_robin", "kv_router"]


class DynamoRun(msgspec.Struct, frozen=True, kw_only=True):
    """One replay."""

    wall_s: float
    """Of the call alone, without the start of its process and the writing of its requests."""
    cpu_s: float
    """Of all its threads, in the same time."""
    summary: dict[str, Any]
    """Its own report; times in milliseconds."""
    requests: list[Served] = []
    """Empty unless asked for; in no particular order."""


def installed(environment: Path = ENVIRONMENT) -> bool:
    """Whether the environment is there."""
    return _python(environment).exists()


def install(environment: Path = ENVIRONMENT) -> None:
    """Make the environment, about 250 MB, from the pinned requirements.

    Raises:
        TrustError: there is no `uv`, no such Python, or no package index can be reached.
    """
    uv = LAB.parent.parent / ".tools" / "bin" / "uv"
    program = str(uv) if uv.exists() else shutil.which("uv")
    if program is None:
        raise TrustError("Installing Dynamo's replay needs uv: run `make setup`, which puts it into .tools")
    variables = {**os.environ, "VIRTUAL_ENV": str(environment)}
    for command in (
        (program, "venv", "--quiet", "--allow-existing", "--python", PYTHON_VERSION, str(environment)),
        (program, "pip", "install", "--quiet", "--require-hashes", "-r", str(REQUIREMENTS)),
    ):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TrustError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")


def write_trace(trace: Trace, path: Path) -> None:
    """Write the requests as Mooncake JSON Lines, at the arrival times that the simulator uses."""
    with path.open("wb") as file:
        for request in trace.requests:
            row = {
                "timestamp": request.arrival_s * 1000,
                "input_length": request.input_tokens,
                "output_length": request.output_tokens,
                "hash_ids": request.block_ids,
            }
            file.write(msgspec.json.encode(row) + b"\n")


def run_replay(
    trace: Path,
    trace_block_tokens: int,
    *,
    router: Router,
    workers: int,
    speed: float,
    engine: ReplayEngine,
    requests: bool = True,
    environment: Path = ENVIRONMENT,
) -> DynamoRun:
    """One replay in a process of its own.

    Args:
        trace: written by `write_trace`.
        trace_block_tokens: what one of its hash ids stands for.
        router: round robin, or Dynamo's KV router.
        workers: engines.
        speed: arrivals come this many times faster.
        engine: the settings that differ from its defaults.
        requests: report each request; costs wall time.
        environment: where it was installed.

    Raises:
        TrustError: it is not installed, failed, or took too long.
    """
    if not installed(environment):
        raise TrustError(
            "NVIDIA Dynamo's replay is not installed: `tokenfleet lab trust dynamo --install` puts it into "
            f"{environment} (about 250 MB, apart from TokenFleet's own environment)"
        )
    job = {
        "trace": str(trace),
        "trace_block_tokens": trace_block_tokens,
        "workers": workers,
        "router": router,
        "speed": speed,
        "engine": engine.arguments(),
        "requests": requests,
    }
    try:
        done = subprocess.run(
            (str(_python(environment)), "-I", dynamo_script.__file__),
            input=msgspec.json.encode(job),
            env={**os.environ, "DYN_LOG": "error"},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TrustError(f"Dynamo's replay did not end within {TIMEOUT_S:g} s") from error
    if done.returncode:
        raise TrustError(f"Dynamo's replay failed: {done.stderr.decode(errors='replace').strip()}")
    return msgspec.json.decode(done.stdout, type=DynamoRun)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"
