"""Opening a trace by its path; the format is told by the content, not by the name."""

from collections.abc import Callable
from pathlib import Path

from lab.errors import TraceError
from lab.traces.azure import COLUMNS as AZURE_COLUMNS
from lab.traces.azure import load_azure
from lab.traces.burstgpt import COLUMNS as BURSTGPT_COLUMNS
from lab.traces.burstgpt import load_burstgpt
from lab.traces.generated_name import GENERATED, SYNTAX, generate_named, is_generated
from lab.traces.model import Trace
from lab.traces.mooncake import load_mooncake
from lab.traces.qwen import load_qwen

Loader = Callable[[Path, list[str], int], Trace]

CSV_LOADERS: tuple[tuple[tuple[str, ...], Loader], ...] = (
    (AZURE_COLUMNS, load_azure),
    (BURSTGPT_COLUMNS[2:4], load_burstgpt),
)
"""Any of these columns in the first line tells the format, so that a missing one can be named."""

__all__ = ["GENERATED", "load_trace", "open_trace"]


def open_trace(name: str, requests: int | None = None, seed: int = 0) -> Trace:
    """The first `requests` (all if None) of a trace file, or of a generated trace (see `generated_name`).

    The seed spreads coarse timestamps, and draws a generated trace whose name gives no other.

    Raises:
        TraceError: the file cannot be read or is not a trace, or the name cannot be generated.
    """
    if requests is not None and requests < 1:
        raise TraceError(name, f"{requests} requests asked for: at least 1 is needed")
    if seed < 0:
        raise TraceError(name, f"seed {seed}: it must not be negative")
    if is_generated(name):
        return generate_named(name, requests, seed)
    return load_trace(Path(name), seed).head(requests)


def load_trace(path: Path, seed: int = 0) -> Trace:
    """All requests of a trace file: Mooncake or Qwen-Bailian JSON Lines, Azure or BurstGPT CSV.

    Raises:
        TraceError: the file cannot be read, is empty, is none of these, or has a row that is wrong.
    """
    try:
        # Not splitlines(): it breaks JSON and CSV texts at form feeds and the like, and counts them as lines.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise TraceError(
            path, f"cannot be read ({error}). Give a trace file, or `{SYNTAX}` for the built-in generator"
        ) from error
    first = next((line.strip() for line in lines if line.strip()), "")
    if not first:
        raise TraceError(path, "the file is empty")
    return _loader(path, first)(path, lines, seed)


def _loader(path: Path, first: str) -> Loader:
    if first.startswith("{"):
        return load_qwen if "chat_id" in first else load_mooncake
    for columns, loader in CSV_LOADERS:
        if any(column in first for column in columns):
            return loader
    raise TraceError(
        path,
        "not a trace: neither JSON Lines of Mooncake (objects with timestamp, input_length, output_length, "
        "hash_ids) or Qwen-Bailian (the same with chat_id, parent_chat_id, type, turn), nor CSV of Azure "
        f"(columns {', '.join(AZURE_COLUMNS)}) or BurstGPT (columns {', '.join(BURSTGPT_COLUMNS)})",
        1,
    )
