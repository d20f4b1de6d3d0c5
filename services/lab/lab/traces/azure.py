"""Azure's LLM inference traces: CSV of `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`."""

from array import array
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from lab.errors import TraceError
from lab.traces.arrivals import arrival_order, spread_buckets
from lab.traces.columns import RequestColumns, private_block_ids
from lab.traces.model import Trace
from lab.traces.rows import csv_rows, parse_tokens

FORMAT = "azure"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
NO_PREFIXES = "the file tells no prefixes: every prompt is synthetic and shares nothing with any other"


def load_azure(path: Path, lines: Iterable[str], seed: int) -> Trace:
    """Requests from the lines of an Azure file, its header included.

    Raises:
        TraceError: a column is missing, a value is not what it should be, or there is no row.
    """
    moments, inputs, outputs = array("d"), array("q"), array("q")
    for number, (moment, context_tokens, generated_tokens) in csv_rows(path, lines, COLUMNS):
        moments.append(_unix_s(path, number, moment))
        inputs.append(parse_tokens(path, number, COLUMNS[1], context_tokens))
        outputs.append(parse_tokens(path, number, COLUMNS[2], generated_tokens))
    if not moments:
        raise TraceError(path, "there is a header but no request")
    order, sorting = arrival_order(moments)
    moments_s = np.asarray(moments)[order]
    times, spreading = spread_buckets((moments_s - moments_s[0]).tolist(), seed)
    input_tokens = np.asarray(inputs)[order]
    requests = RequestColumns(
        arrival_s=np.asarray(times) - times[0],
        input_tokens=input_tokens,
        output_tokens=np.asarray(outputs)[order],
        block_ids=private_block_ids(input_tokens),
    )
    return Trace(
        source=path.name,
        format=FORMAT,
        requests=requests,
        assumptions=(NO_PREFIXES, *sorting, *spreading),
    )


def _unix_s(path: Path, number: int, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise TraceError(path, f"TIMESTAMP is not a time: {text[:40]!r}", number) from error
