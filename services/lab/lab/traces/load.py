"""Opening a trace by its path; the format is told by the content, not by the name."""

from pathlib import Path

from lab.errors import TraceError
from lab.traces.azure import COLUMNS, load_azure
from lab.traces.generator import generate
from lab.traces.model import Trace
from lab.traces.mooncake import load_mooncake

GENERATED = "generated"
"""The name that stands for the built-in generator instead of a path."""

DEFAULT_GENERATED_REQUESTS = 12_000


def open_trace(name: str, requests: int | None = None, seed: int = 0) -> Trace:
    """The first `requests` of a trace file (all if None), or of a generated trace.

    Raises:
        TraceError: the file cannot be read or is not a trace.
    """
    if requests is not None and requests < 1:
        raise TraceError(name, f"{requests} requests asked for: at least 1 is needed")
    if name == GENERATED:
        return generate(requests or DEFAULT_GENERATED_REQUESTS, seed)
    return load_trace(Path(name), seed).head(requests)


def load_trace(path: Path, seed: int = 0) -> Trace:
    """All requests of a trace file, Mooncake JSON Lines or Azure CSV.

    Raises:
        TraceError: the file cannot be read, is empty, or is neither.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(
            path, f"cannot be read ({error}). Give a trace file, or `{GENERATED}` for the built-in generator"
        ) from error
    first = next((line.strip() for line in lines if line.strip()), "")
    if not first:
        raise TraceError(path, "the file is empty")
    if first.startswith("{"):
        return load_mooncake(path, lines, seed)
    if any(column in first for column in COLUMNS):
        trace = load_azure(path, lines, seed)
        if not trace.requests:
            raise TraceError(path, "there is a header but no request")
        return trace
    raise TraceError(
        path,
        "neither Mooncake JSON Lines (objects with timestamp, input_length, output_length, hash_ids) "
        f"nor Azure CSV (columns {', '.join(COLUMNS)})",
        1,
    )
