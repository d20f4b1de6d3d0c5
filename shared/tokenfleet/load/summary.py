"""A pool's load in a few numbers per instance, for those who are too far away to follow every event. Pure.

What a prompt would wait for, and whom it would push over their objective, is asked of the same `predict` and `outlook`
that the site itself decides by, for a few lengths; its own prefill is worked out where it is wanted, by the same form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfleet.fleet_view import InstanceView
from tokenfleet.load.lengths import OutputLengths
from tokenfleet.load.predict import outlook, predict
from tokenfleet.load.table import Floats, Ints
from tokenfleet.load.view import LoadView

LENGTHS_TOKENS = (1_000, 4_000, 16_000, 64_000)
"""Prompts that KV waits and expected misses are told for; between them they are interpolated."""
MOST_INSTANCES = 32
"""Those that are free first: placement looks for the best ones of a site, not for all."""

_ATTRIBUTES = 6
COLUMNS = _ATTRIBUTES + 2 * len(LENGTHS_TOKENS)
_PACKED = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """By `[instance]`, or by `[length, instance]`. Engine seconds and tokens."""

    backlog_s: Floats
    """Until the prefills ahead are done."""
    prefill_s_per_token: Floats
    attention_s_per_token_pair: Floats
    step_s: Floats
    """What an iteration takes besides prefill."""
    room_tokens: Floats
    """Of a prompt in one iteration."""
    max_prompt_tokens: Floats
    kv_wait_s: Floats
    """By length: until there is KV room."""
    expected_misses: Floats
    """By length: requests there that such a prompt would push over their objective."""


def first_free(load: LoadView, instances: Sequence[InstanceView], now_s: float) -> list[InstanceView]:
    """The instances that a summary tells of: all, or those with the least before them."""
    if len(instances) <= MOST_INSTANCES:
        return list(instances)
    slots = load.slots(view.record.instance for view in instances)
    backlog_s = predict(load.table, slots, 1, 0.0, 0.0, now_s).backlog_s
    chosen: list[int] = sorted(np.argsort(backlog_s, kind="stable")[:MOST_INSTANCES].tolist())
    return [instances[position] for position in chosen]


def pack_load(
    load: LoadView, lengths: OutputLengths, instances: Sequence[InstanceView], now_s: float
) -> bytes:
    """What these instances are busy with, for a `SiteSummary`."""
    if not instances:
        return b""
    slots = load.slots(view.record.instance for view in instances)
    everyone: Ints = np.arange(len(instances), dtype=np.intp)
    kv_waits_s: list[Floats] = []
    misses: list[Floats] = []
    for tokens in LENGTHS_TOKENS:
        predictions = predict(load.table, slots, tokens, 0.0, 0.0, now_s)
        closer = outlook(load.table, predictions, everyone, lengths.quantiles)
        kv_waits_s.append(closer.kv_wait_s)
        misses.append(closer.expected_misses)
    predictions = predict(load.table, slots, 1, 0.0, 0.0, now_s)
    at = predictions.instances
    longest = [view.record.profile.longest_prompt_tokens for view in instances]
    columns = np.stack(
        [
            predictions.backlog_s,
            at.prefill_factor * at.prefill_s_per_token,
            at.prefill_factor * at.attention_s_per_token_pair,
            predictions.step_s,
            np.maximum(at.iteration_budget_tokens - at.decoding, 1.0),
            np.array(longest, dtype=float),
            *kv_waits_s,
            *misses,
        ]
    )
    return columns.astype(_PACKED).tobytes()


def unpack_load(packed: bytes) -> npt.NDArray[np.float64]:
    """The columns of a summary by `[column, instance]`, in the order of `PoolLoad`.

    Raises:
        ValueError: it does not have this form.
    """
    if len(packed) % (COLUMNS * _PACKED.itemsize):
        raise ValueError(
            f"a load of {len(packed)} bytes; a multiple of {COLUMNS * _PACKED.itemsize} expected"
        )
    columns = np.frombuffer(packed, dtype=_PACKED).reshape(COLUMNS, -1).astype(np.float64)
    if not np.isfinite(columns).all() or (columns < 0).any():
        raise ValueError("a load with a figure that is negative or not finite")
    return columns


def pool_load(columns: npt.NDArray[np.float64]) -> PoolLoad:
    """Names for the columns of one or, along further axes, of many pools."""
    lengths = len(LENGTHS_TOKENS)
    return PoolLoad(
        columns[0],
        columns[1],
        columns[2],
        columns[3],
        columns[4],
        columns[5],
        columns[_ATTRIBUTES : _ATTRIBUTES + lengths],
        columns[_ATTRIBUTES + lengths :],
    )


def own_prefill_s(load: PoolLoad, input_tokens: int, uncached_tokens: Floats) -> Floats:
    """A prompt's own prefill at each instance, as `predict` has it (`tokenfleet.engine.profile`)."""
    compute_s = uncached_tokens * (
        load.prefill_s_per_token + load.attention_s_per_token_pair * (input_tokens - uncached_tokens / 2)
    )
    return compute_s + load.step_s * np.ceil(uncached_tokens / load.room_tokens)


def at_length(by_length: Floats, tokens: Floats) -> Floats:
    """A figure told for a few lengths, for lengths between or beyond them, by instance."""
    place = np.interp(np.log(np.maximum(tokens, 1.0)), _LOG_LENGTHS, _PLACES)
    below = np.minimum(place.astype(np.intp), len(LENGTHS_TOKENS) - 2)
    share = place - below
    instances: Ints = np.arange(by_length.shape[1], dtype=np.intp)
    return (1.0 - share) * by_length[below, instances] + share * by_length[below + 1, instances]


_LOG_LENGTHS = np.log(np.array(LENGTHS_TOKENS, dtype=float))
_PLACES = np.arange(len(LENGTHS_TOKENS), dtype=float)
