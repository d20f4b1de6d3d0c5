"""BurstGPT: CSV of `Timestamp` (s), `Model`, `Request tokens`, `Response tokens`, `Total tokens`, `Log Type`.

Format and meaning: the README of the HPMLL/BurstGPT repository. Files that keep failures mark them with no
response tokens.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lab.errors import TraceError
from lab.traces.arrivals import arrival_order, spread_buckets, spread_known_buckets
from lab.traces.azure import NO_PREFIXES
from lab.traces.columns import Labels, RequestColumns, private_block_ids
from lab.traces.model import Trace
from lab.traces.rows import csv_rows, parse_seconds, parse_tokens

FORMAT = "burstgpt"
COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")
RESOLUTION_S = 1.0
"""Published timestamps are whole seconds."""


def load_burstgpt(path: Path, lines: Iterable[str], seed: int) -> Trace:
    """Requests from the lines of a BurstGPT file, its header included.

    A request's task is the first word of its log type: `conversation` or `api`.

    Raises:
        TraceError: a column is missing, a value is not what it should be, or no request is left.
    """
    seconds, inputs, outputs, tasks = array("d"), array("q"), array("q"), array("q")
    models: Counter[str] = Counter()
    task_codes: dict[str, int] = {}
    failed_lines: list[int] = []
    for number, (timestamp, model, request, response, log_type) in csv_rows(path, lines, COLUMNS):
        time_s = parse_seconds(path, number, "Timestamp", timestamp)
        input_tokens = parse_tokens(path, number, "Request tokens", request, least=0)
        output_tokens = parse_tokens(path, number, "Response tokens", response, least=0)
        if not output_tokens:
            failed_lines.append(number)
            continue
        if not input_tokens:
            raise TraceError(path, "Request tokens is 0 though there was a response", number)
        seconds.append(time_s)
        inputs.append(input_tokens)
        outputs.append(output_tokens)
        tasks.append(task_codes.setdefault(_task(path, number, log_type), len(task_codes)))
        models[model] += 1
    if not seconds:
        raise TraceError(
            path, f"there is a header but no request with a response ({len(failed_lines)} failed)"
        )
    order, sorting = arrival_order(seconds)
    sorted_s = np.asarray(seconds)[order]
    # Quiet hours have too few requests for buckets to show, but the format is known to round.
    if np.all(sorted_s % RESOLUTION_S == 0):
        times, spreading = spread_known_buckets(sorted_s.tolist(), RESOLUTION_S, seed)
    else:
        times, spreading = spread_buckets(sorted_s.tolist(), seed)
    tokens = np.asarray(inputs)[order]
    requests = RequestColumns(
        arrival_s=np.asarray(times) - times[0],
        input_tokens=tokens,
        output_tokens=np.asarray(outputs)[order],
        block_ids=private_block_ids(tokens),
        tasks=Labels(np.asarray(tasks)[order], tuple(task_codes)),
    )
    return Trace(
        source=path.name,
        format=FORMAT,
        requests=requests,
        assumptions=(NO_PREFIXES, *_about_rows(models, failed_lines), *sorting, *spreading),
    )


def _task(path: Path, number: int, log_type: str) -> str:
    words = log_type.lower().split()
    if not words:
        raise TraceError(path, "Log Type is empty", number)
    return words[0]


def _about_rows(models: Counter[str], failed_lines: list[int]) -> Iterable[str]:
    if len(models) > 1:
        counted = ", ".join(f"{count:,} for {model or 'none'}" for model, count in models.most_common(4))
        yield f"one model serves all, though requests named several ({counted})"
    if failed_lines:
        yield (
            f"{len(failed_lines):,} requests that failed when recorded (no response tokens; first at line "
            f"{failed_lines[0]}) are left out"
        )
