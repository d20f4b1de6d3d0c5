"""Engine metrics by name, out of Prometheus text: vLLM (old and new names) and SGLang.

Only the wanted series are looked for, which costs a fiftieth of parsing a whole vLLM page. Parallel ranks
and adapters appear as several labels of one name: counts are added up, shares are averaged.
"""

import math
from typing import Literal

import msgspec

Fold = Literal["sum", "mean"]


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of an engine's metrics. None: the engine does not say."""

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    prefix_queries_tokens: int | None = None
    prefix_hits_tokens: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    process_start_s: float | None = None
    """Unix time at which the engine's process started."""


# For each field the names it goes by, the most recent first: the first one present is taken.
_NAMES = {
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "prefix_queries_tokens": (
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries",
    ),
    "prefix_hits_tokens": (
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
        "sglang:cached_tokens_total",
    ),
    "prompt_tokens": ("vllm:prompt_tokens_total", "vllm:prompt_tokens", "sglang:prompt_tokens_total"),
    "generation_tokens": (
        "vllm:generation_tokens_total",
        "vllm:generation_tokens",
        "sglang:generation_tokens_total",
    ),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
}
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_PROCESS_START = ("process_start_time_seconds",)


def parse(text: str) -> Readings:
    """The wanted metrics of a Prometheus text page; lines that cannot be read count as missing."""
    page = "\n" + text
    counts = {field: _count(page, names) for field, names in _NAMES.items()}
    return Readings(
        **counts,
        kv_usage=_value(page, _KV_USAGE, "mean"),
        process_start_s=_value(page, _PROCESS_START, "sum"),
    )


def restarted(before: Readings, now: Readings) -> bool:
    """Whether another engine process answers now: another start time, or a counter that went back."""
    if before.process_start_s is not None and now.process_start_s is not None:
        return before.process_start_s != now.process_start_s
    pairs = (
        (before.prompt_tokens, now.prompt_tokens),
        (before.generation_tokens, now.generation_tokens),
    )
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _count(page: str, names: tuple[str, ...]) -> int | None:
    value = _value(page, names, "sum")
    return None if value is None else round(value)


def _value(page: str, names: tuple[str, ...], fold: Fold) -> float | None:
    for name in names:
        samples = _samples(page, name)
        if samples:
            total = math.fsum(samples)
            return total if fold == "sum" else total / len(samples)
    return None


def _samples(page: str, name: str) -> list[float]:
    found: list[float] = []
    needle = "\n" + name
    at = page.find(needle)
    while at >= 0:
        start = at + len(needle)
        end = page.find("\n", start)
        rest = page[start:] if end < 0 else page[start:end]
        # Another metric may begin with this one's name; a label's value may hold any character.
        if rest[:1] in ("{", " ", "\t"):
            fields = rest[rest.rfind("}") + 1 :].split()
            value = _number(fields[0]) if fields else None
            if value is not None:
                found.append(value)
        at = -1 if end < 0 else page.find(needle, end)
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
