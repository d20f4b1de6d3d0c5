"""Many decisions measured one by one, and the P99 over them shown beside what it should be at most."""

import os
import time
from typing import Any

import numpy as np

DECISIONS = 500


def decide_all(
    benchmark: Any, who: str, among: str, at_most_ms: float | None, one_more: Any, decide: Any
) -> None:
    """Measure `DECISIONS` decisions, each on the arguments that `one_more` makes untimed.

    Args:
        benchmark: pytest-benchmark's.
        who: decides.
        among: what is chosen.
        at_most_ms: what the P99 should be at most; None for whoever is only compared with.
        one_more: gives `(args, kwargs)` of the next decision.
        decide: is measured.
    """
    wall_s: list[float] = []

    def timed(*args: Any) -> None:
        start_s = time.perf_counter()
        decide(*args)
        wall_s.append(time.perf_counter() - start_s)

    benchmark.pedantic(timed, setup=one_more, rounds=DECISIONS, warmup_rounds=20)
    if benchmark.disabled:
        return
    p99_ms, wall_p99_ms = (
        float(np.quantile(seconds, 0.99)) * 1e3
        for seconds in (benchmark.stats.stats.data, wall_s[-DECISIONS:])
    )
    benchmark.extra_info |= {
        "p99_ms": p99_ms,
        "p99_at_most_ms": at_most_ms,
        "wall_p99_ms": wall_p99_ms,
        "load_average": os.getloadavg()[0],
    }
    bar = "" if at_most_ms is None else f", at most {at_most_ms:g} ms"
    benchmark.stats.group = f"{who}, {among}: P99 {p99_ms:.2f} ms{bar}"
