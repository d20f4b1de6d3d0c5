"""A real vLLM engine on the CPU as a child process, and what it says of itself."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from prometheus_client.parser import text_string_to_metric_families

from console.child import ChildSetup

MODEL = "tiny"
BLOCK_TOKENS = 32
"""The smallest that vLLM's CPU attention takes."""
CONTEXT_TOKENS = 16_384
START_TIMEOUT_S = 1_800.0
"""45 s on an idle core; on a machine where others work, more than ten minutes were seen."""
STOP_TIMEOUT_S = 15.0

PROFILE = {
    "name": "tiny-cpu",
    "base_s": 0.0014,
    "decode_s_per_request": 0.0003,
    "decode_s_per_context_token": 2e-8,
    "prefill_s_per_token": 15e-6,
    "attention_s_per_token_pair": 1e-10,
    "kv_capacity_tokens": 1_048_576,
    "iteration_budget_tokens": 2_048,
    "max_running_requests": 16,
    "max_context_tokens": CONTEXT_TOKENS,
}
"""Measured roughly on one core; TokenFleet learns the rest."""


def say(message: str) -> None:
    """Tell whoever waits how far things are."""
    print(f"  {message}", file=sys.stderr, flush=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now, all different."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@dataclass
class VllmEngine:
    """One engine: an API server, an engine core and a worker, in a process group of their own."""

    name: str
    environment: Path
    model_folder: Path
    log: Path
    hash_seed: int
    """vLLM's block hashes depend on it, so two seeds give the same blocks different names."""
    ports: list[int] = field(default_factory=lambda: free_ports(3))
    """API, KV events, replay; kept over restarts."""
    _process: "subprocess.Popen[bytes] | None" = None
    _started_s: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def ready_file(self, version: str) -> dict[str, Any]:
        """What registers it with a node agent."""
        return {
            "url": self.url,
            "model": MODEL,
            "version": version,
            "profile": PROFILE,
            "block_size_tokens": BLOCK_TOKENS,
            "kv_events_endpoint": f"tcp://127.0.0.1:{self.ports[1]}",
            "kv_replay_endpoint": f"tcp://127.0.0.1:{self.ports[2]}",
        }

    def start(self) -> None:
        """Start it; `wait_ready` waits for it."""
        say(f"{self.name} starting, log in {self.log}")
        self._started_s = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(self._command()),
                env={**os.environ, **self._variables()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Not to be left behind, whatever ends the tests.
                preexec_fn=ChildSetup(os.getpid(), signal.SIGTERM),
            )

    def _command(self) -> Iterable[str]:
        api, events, replay = self.ports
        kv_events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # With the asterisk vLLM listens here; a bare address would make it connect.
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
        }
        yield str(self.environment / "bin" / "vllm")
        yield from ("serve", str(self.model_folder), "--served-model-name", MODEL)
        yield from ("--load-format", "dummy", "--dtype", "float32", "--enforce-eager")
        yield from ("--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", "16")
        yield from ("--block-size", str(BLOCK_TOKENS), "--enable-prompt-tokens-details")
        yield from ("--distributed-executor-backend", "uni", "--enable-log-requests")
        yield from ("--host", "127.0.0.1", "--port", str(api))
        yield from ("--kv-events-config", json.dumps(kv_events))

    def _variables(self) -> dict[str, str]:
        return {
            "PYTHONHASHSEED": str(self.hash_seed),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_COLOR": "0",
            "HF_HUB_OFFLINE": "1",
        }

    def wait_ready(self) -> None:
        """Until it answers; fails with the end of its log if it ends first."""
        assert self._process is not None
        while True:
            waited_s = time.monotonic() - self._started_s
            assert self._process.poll() is None, f"{self.name} ended:\n{self._log_end()}"
            assert waited_s < START_TIMEOUT_S, f"{self.name} is not ready:\n{self._log_end()}"
            if self._answers():
                say(f"{self.name} ready after {waited_s:.0f} s")
                return
            time.sleep(0.5)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def kill(self) -> None:
        """SIGKILL to all its processes, as when a machine dies."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        say(f"{self.name} killed")

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill_group(self._process.pid)
            self._process.wait()
            self._process = None

    @staticmethod
    def _kill_group(group: int) -> None:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:  # all of it has ended
            return

    def complete(self, prompt: list[int]) -> None:
        """A short completion straight from this engine."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60.0)
        assert answer.status_code == 200, answer.text

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that bear these labels; the metric must be there."""
        page = httpx.get(f"{self.url}/metrics", timeout=30.0).text
        values = [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert values, f"{self.name} has no metric {name} {labels}"
        return sum(values)

    @property
    def hits_tokens(self) -> float:
        """Prompt tokens found in its prefix cache so far."""
        return self.metric("vllm:prefix_cache_hits_total")

    def aborted(self, request_id: str) -> bool:
        """Whether its log says that it aborted this request.

        vLLM 0.32 forgets an aborted request before it counts it: `vllm:request_success_total` with the reason
        `abort` stays at zero even for a client of its own that hangs up.
        """
        line = re.compile(rf"Request (cmpl|chatcmpl)-{re.escape(request_id)}\S* aborted")
        return line.search(self.log.read_text(errors="replace")) is not None

    @property
    def running(self) -> float:
        return self.metric("vllm:num_requests_running")

    @property
    def generated_tokens(self) -> float:
        return self.metric("vllm:generation_tokens_total")
