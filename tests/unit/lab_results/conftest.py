"""A made-up run: a fixture with plausible shapes, none of whose figures was measured."""

import math
import random
from typing import Any

import pytest

POLICIES = {
    "tokenfleet": (0.42, 1.00, 0.985, 0.012),
    "tokenfleet_no_price": (0.50, 0.97, 0.955, 0.002),
    "lowest_ttft": (0.62, 0.96, 0.95, 0.0),
    "dynamo_kv": (0.96, 0.93, 0.90, 0.0),
    "llm_d": (0.88, 0.92, 0.89, 0.0),
    "least_requests": (1.25, 0.80, 0.78, 0.0),
    "sglang_cache_aware": (1.45, 0.55, 0.52, 0.0),
    "round_robin": (2.52, 0.50, 0.49, 0.0),
    "random": (3.90, 0.40, 0.38, 0.0),
}
LENGTHS = {"4k": 6000, "16k": 3500, "64k": 2200, "longer": 300}


def example_run(seeds: int = 5) -> dict[str, Any]:
    """A run's JSON, as a dictionary a test may change."""
    return {
        "scenario": "example",
        "run": {
            "seeds": seeds,
            "command": f"tokenfleet lab run example --seeds {seeds} --json docs/runs/example.json",
            "trace": "example_trace.jsonl",
            "speed": 1.35,
            "description": "Made up for the tests; nothing was run.",
            "requests": 12_000,
            "assumptions": ["arrivals spread within each second"],
        },
        "bound": {
            "ttft_s": {"p50": 0.22, "p95": 2.96, "p99": 9.09},
            "goodput_tokens_per_s": 1640.0,
            "relaxation": "No request waits for another; every length is known.",
            "series": {"ttft_cdf": _cdf(0.22)},
        },
        "policies": {name: _policy(*shape, seed=i) for i, (name, shape) in enumerate(POLICIES.items())},
    }


def _policy(ttft: float, good: float, attained: float, refused: float, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    result = _figures(ttft, good, attained, refused)
    result["min"] = _figures(ttft * 0.95, good * 0.985, attained - 0.01, refused * 0.7)
    result["max"] = _figures(ttft * 1.06, good * 1.01, min(1.0, attained + 0.008), refused * 1.3)
    result["citation"] = "https://example.org, defaults"
    result["series"] = {
        "ttft_cdf": _cdf(ttft),
        "goodput_over_time": [
            [t, 1600 * good * (1 + 0.2 * math.sin(t / 240) + 0.1 * chance.random())]
            for t in range(0, 2700, 30)
        ],
        "queue_length_over_time": [
            [t, ttft * (1 + math.sin(t / 300) + 0.5 * chance.random())] for t in range(0, 2700, 30)
        ],
        "per_instance_load": {f"engine-{i}": 0.85 + chance.uniform(-0.08, 0.08) * ttft / 2 for i in range(8)},
    }
    return result


def _figures(ttft: float, good: float, attained: float, refused: float) -> dict[str, Any]:
    group = _group(12_000, ttft, good, attained, refused)
    parts = {"interactive": 0.75, "long_context": 0.15, "batch": 0.10}
    group["classes"] = {
        name: _group(
            12_000 * part, ttft * (1 if name == "interactive" else 3), good * part, attained, refused
        )
        for name, part in parts.items()
    }
    group["input_lengths"] = {
        key: {
            "offered": offered,
            "rejected": offered * refused * rank,
            "attainment_offered": attained - 0.04 * rank * (1.05 - attained),
            "ttft_s": _percentiles(ttft * (1 + rank)),
        }
        for rank, (key, offered) in enumerate(LENGTHS.items())
    }
    return group


def _group(offered: float, ttft: float, good: float, attained: float, refused: float) -> dict[str, Any]:
    return {
        "offered": offered,
        "completed": offered * (1 - refused),
        "rejected": offered * refused,
        "timed_out": 0,
        "cancelled": 0,
        "failed": 0,
        "ledger_rows": offered,
        "output_tokens_per_s": 1650.0,
        "goodput_tokens_per_s": 1600 * good,
        "attainment_offered": attained,
        "attainment_admitted": min(1.0, attained / (1 - refused)),
        "prefix_reuse": 0.14,
        "ttft_s": _percentiles(ttft),
        "tpot_s": {"p50": 0.04, "p95": 0.08, "p99": 0.11},
        "e2e_s": _percentiles(ttft + 10),
    }


def _percentiles(p50: float) -> dict[str, float]:
    return {"p50": p50, "p95": p50 * 7, "p99": p50 * 16}


def _cdf(p50: float) -> list[list[float]]:
    return [[p50 * math.exp(2.0 * (k - 50) / 25), 1 / (1 + math.exp(-(k - 50) / 10))] for k in range(101)]


@pytest.fixture
def example() -> dict[str, Any]:
    """The test's own, to change."""
    return example_run()


@pytest.fixture(scope="session")
def untouched() -> dict[str, Any]:
    """Everybody's: not to be changed."""
    return example_run()
