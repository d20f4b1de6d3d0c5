"""Runs NVIDIA Dynamo's offline replay; executed by the interpreter of the environment that holds it.

A job comes as JSON on standard input, its result goes as JSON to standard output. Imports nothing of this
project, which is not installed there.
"""

import importlib
import json
import sys
import time
from typing import Any


def main() -> None:
    """One job: `{"trace", "trace_block_tokens", "workers", "router", "speed", "engine", "requests"}`."""
    job = json.load(sys.stdin)
    core: Any = importlib.import_module("dynamo._core")
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    result = core.run_mocker_trace_replay(
        [job["trace"]],
        extra_engine_args={"engine": job["engine"]},
        num_workers=job["workers"],
        router_mode=job["router"],
        arrival_speedup_ratio=job["speed"],
        trace_block_size=job["trace_block_tokens"],
        capture_per_request=job["requests"],
    )
    answer: dict[str, Any] = {
        "wall_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - started_cpu_s,
        "summary": result.summary,
    }
    if job["requests"]:
        answer["requests"] = [_request(record) for record in result.per_request]
    json.dump(answer, sys.stdout)


def _request(record: dict[str, Any]) -> dict[str, Any]:
    output_tokens = record["output_length"]
    decode_ms = record["last_token_ms"] - record["first_token_ms"]
    return {
        "input_tokens": record["input_length"],
        "output_tokens": output_tokens,
        # A preempted request is admitted again and finds its own blocks; what others had computed for it is
        # what it found at first.
        "reused_tokens": record["admission_history"][0]["reused_input_tokens"],
        "ttft_s": record["ttft_ms"] / 1000,
        "tpot_s": decode_ms / 1000 / (output_tokens - 1) if output_tokens > 1 else None,
        "ended_s": record["last_token_ms"] / 1000,
    }


if __name__ == "__main__":
    main()
