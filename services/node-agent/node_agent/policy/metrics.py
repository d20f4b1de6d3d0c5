"""Engine metrics by name, out of Prometheus text: vLLM (old and new names) and SGLang.

Only the wanted series are looked for, which costs a fiftieth of parsing a whole vLLM page. One name may come
with many label sets, which mean different things:

- `engine`, `dp_rank`, `model_name`, `cache_source` and such divide a figure: counts are added up, shares averaged.
- `tp_rank`, `pp_rank`, `moe_ep_rank`: workers on the same requests, each of which may say the same. One counts.
- `priority`, `reason`: a breakdown beside the total, which has the label empty or not at all. The total counts.
"""

import math
import re
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
    "preemptions": (
        "vllm:num_preemptions_total",
        "vllm:num_preemptions",
        "sglang:num_retracted_requests_total",
    ),
}
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_PROCESS_START = ("process_start_time_seconds",)

_WORKER_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank")
_BREAKDOWN_LABELS = ("priority", "reason")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_Sample = tuple[dict[str, str], float]


def parse(text: str) -> Readings:
    """The wanted metrics of a Prometheus text page; a metric with a line that cannot be read counts as missing."""
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
            parts = _parts(samples)
            # A part that is no number leaves the whole unknown: the other parts alone would be too little.
            if not all(map(math.isfinite, parts)):
                return None
            total = math.fsum(parts)
            return total if fold == "sum" else total / len(parts)
    return None


def _parts(samples: list[_Sample]) -> list[float]:
    """The figures to add up: totals only, and each once however many workers say it."""
    if len(samples) == 1:
        return [samples[0][1]]
    totals = [sample for sample in samples if not any(map(sample[0].get, _BREAKDOWN_LABELS))]
    parts: dict[frozenset[tuple[str, str]], float] = {}
    for labels, value in totals or samples:
        of = frozenset(item for item in labels.items() if item[0] not in _WORKER_LABELS)
        known = parts.get(of)
        # Not max(): NaN must stay.
        parts[of] = value if known is None or value > known or math.isnan(value) else known
    return list(parts.values())


def _samples(page: str, name: str) -> list[_Sample]:
    found: list[_Sample] = []
    needle = "\n" + name
    at = page.find(needle)
    while at >= 0:
        start = at + len(needle)
        end = page.find("\n", start)
        rest = page[start:] if end < 0 else page[start:end]
        # Another metric may begin with this one's name; a label's value may hold any character.
        if rest[:1] in ("{", " ", "\t"):
            close = rest.rfind("}") + 1
            fields = rest[close:].split()
            found.append((dict(_LABEL.findall(rest[:close])), _number(fields[0] if fields else "")))
        at = -1 if end < 0 else page.find(needle, end)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
