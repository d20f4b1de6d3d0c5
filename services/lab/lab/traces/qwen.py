"""Qwen-Bailian: JSON Lines of `chat_id`, `parent_chat_id`, `timestamp` (s), `input_length`, `output_length`,
`type`, `turn` and `hash_ids` (one per 16 tokens).

Format and meaning: the README of the alibaba-edu/qwen-bailian-usagetraces-anon repository. A conversation is a
tree of chats linked by `parent_chat_id`, -1 at its root.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from lab.errors import TraceError
from lab.traces.arrivals import arrival_order, spread_buckets
from lab.traces.columns import Integers, Labels, ListedBlockIds, RequestColumns
from lab.traces.model import Trace, blocks_in
from lab.traces.prefixes import chained, chained_by_prefix
from lab.traces.rows import BlockId, Seconds, Tokens, json_rows

FORMAT = "qwen"
BLOCK_TOKENS = 16
NO_PARENT = -1

ChatId = Annotated[int, msgspec.Meta(ge=NO_PARENT, le=2**63 - 1)]


class _Row(msgspec.Struct, frozen=True):
    chat_id: ChatId
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[BlockId]
    parent_chat_id: ChatId = NO_PARENT
    type: str = "text"
    turn: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 1


def load_qwen(path: Path, lines: Iterable[str], seed: int) -> Trace:
    """Requests from numbered lines of a Qwen-Bailian file. A request's task is its `type`.

    Raises:
        TraceError: a line is not such a row, or its block ids do not cover its input.
    """
    rows: list[tuple[float, int, int, int, int, str]] = []
    block_ids: list[Integers] = []
    uncovered = 0
    for number, row in json_rows(path, lines, _Row, "Qwen-Bailian"):
        _check_coverage(path, number, row)
        uncovered += len(row.hash_ids) < blocks_in(row.input_length, BLOCK_TOKENS)
        rows.append(
            (row.timestamp, row.chat_id, row.parent_chat_id, row.input_length, row.output_length, row.type)
        )
        block_ids.append(np.array(row.hash_ids, dtype=np.int64))
    order, sorting = arrival_order([row[0] for row in rows])
    timestamps, chats, parents, inputs, outputs, types = zip(*(rows[place] for place in order), strict=True)
    times, spreading = spread_buckets(timestamps, seed)
    input_tokens = np.array(inputs, dtype=np.int64)
    ids, bounds, keying = _keyed_by_prefix([block_ids[place] for place in order], input_tokens)
    task_names = tuple(dict.fromkeys(types))
    task_codes = {name: code for code, name in enumerate(task_names)}
    requests = RequestColumns(
        arrival_s=np.asarray(times) - times[0],
        input_tokens=input_tokens,
        output_tokens=np.array(outputs, dtype=np.int64),
        block_ids=ListedBlockIds(ids, bounds),
        trace_block_tokens=BLOCK_TOKENS,
        tasks=Labels(np.array([task_codes[name] for name in types]), task_names),
        sessions=np.array(conversations(chats, parents), dtype=np.int64),
    )
    assumptions = [f"each hash id stands for {BLOCK_TOKENS} tokens of prompt", *keying]
    if uncovered:
        assumptions.append(
            f"{uncovered:,} prompts have no hash id for their last, partial block: it is shared with no other"
        )
    return Trace(
        source=path.name,
        format=FORMAT,
        requests=requests,
        assumptions=(*assumptions, *sorting, *spreading),
    )


def conversations(chats: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The root chat of each, in order of time. Where a file begins inside a conversation, its first known chat
    stands for the root; a chat that names itself or a later one begins a conversation too.
    """
    roots: dict[int, int] = {}
    for chat, parent in zip(chats, parents, strict=True):
        roots[chat] = chat if parent == NO_PARENT else roots.get(parent, parent)
    return [roots[chat] for chat in chats]


def _check_coverage(path: Path, number: int, row: _Row) -> None:
    full, started = row.input_length // BLOCK_TOKENS, blocks_in(row.input_length, BLOCK_TOKENS)
    if not full <= len(row.hash_ids) <= started:
        raise TraceError(
            path,
            f"{row.input_length} input tokens need {started} hash ids of {BLOCK_TOKENS} tokens, "
            f"not {len(row.hash_ids)}",
            number,
        )


def _keyed_by_prefix(
    block_ids: Sequence[Integers], input_tokens: Integers
) -> tuple[Integers, Integers, tuple[str, ...]]:
    """All ids in one array, the bounds of each prompt's in it, and what was assumed of them."""
    started = -(-input_tokens // BLOCK_TOKENS)
    bounds = np.concatenate(([0], np.cumsum(started)))
    ids = np.empty(bounds[-1], dtype=np.int64)
    listed = np.ones(len(ids), dtype=bool)
    for start, end, own in zip(bounds[:-1].tolist(), bounds[1:].tolist(), block_ids, strict=True):
        ids[start : start + len(own)] = own
        listed[start + len(own) : end] = False
    # Compact first, so that private ids and prefixes can be numbered without running out of 64 bits.
    names, compact = np.unique(ids[listed], return_inverse=True)
    ids[listed] = compact
    ids[~listed] = len(names) + np.arange(np.count_nonzero(~listed))
    if chained(ids, bounds):
        return ids, bounds, ()
    return (
        chained_by_prefix(ids, bounds),
        bounds,
        ("hash ids recur after different prefixes: each is told apart by all that precedes it",),
    )
