"""What a request would meet at each instance of its pool if it were started now. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, OutputLengths, outlook, predict
from tokenfleet.load.table import Floats, Ints

LOOKED_AT = 16
"""Instances, of the earliest first token, whose requests and KV room are looked at."""

IDLE_S = 0.05
"""An instance with no more prefill before it than this begins with a prompt at once."""
START_WITHIN_S = 0.3
"""A request is released to an engine that can begin with it this soon: late enough to bind well, early enough that
no engine idles between two prompts."""


@dataclass(frozen=True, slots=True)
class Prospects:
    """By instance, those of the earliest first token; engine seconds. Nothing of the prompt is taken to be cached."""

    instances: tuple[InstanceView, ...]
    wait_s: Floats
    """For the prefills ahead of it and, where it could begin soon, for KV room."""
    own_prefill_s: Floats
    misses: Floats
    """Requests there that it is expected to push over their objective; infinite where it could not begin soon."""
    kv_free_tokens: Floats
    """What would be free of the instance's KV with its prompt in; as `misses`, only where it could begin soon."""
    kv_capacity_tokens: Floats
    idle_share: float = 1.0
    """Of all the instances asked about, those that could begin with a prompt at once."""
    foreseen_share: float = 0.0
    """Of the time to come, taken by prompts of others that are still to arrive."""

    @property
    def ttft_s(self) -> Floats:
        return self.wait_s + self.own_prefill_s


def prospects(
    input_tokens: int,
    instances: Sequence[InstanceView],
    load: LoadView,
    lengths: OutputLengths,
    now_s: float,
    headroom_tokens: int = 0,
    foreseen_share: float = 0.0,
) -> Prospects:
    """What a prompt would meet where its first token would come first.

    Args:
        input_tokens: of the prompt.
        instances: those that can take it; at least one.
        load: what each is busy with.
        lengths: how long answers are.
        now_s: monotonic engine seconds.
        headroom_tokens: the harm to others is judged as if the prompt were so much longer,
        foreseen_share: and as if other prefills took this share of the time to come.
    """
    slots = load.slots(view.record.instance for view in instances)
    predictions = predict(load.table, slots, input_tokens, 0.0, 0.0, now_s)
    nearest: Ints = np.argsort(predictions.ttft_s, kind="stable")[:LOOKED_AT]
    wait_s = predictions.backlog_s[nearest]
    misses, free_tokens = np.full(len(nearest), np.inf), np.zeros(len(nearest))
    soon: Ints = np.flatnonzero(wait_s <= START_WITHIN_S)
    if soon.size:
        harming = predictions
        if headroom_tokens:
            harming = predict(load.table, slots, input_tokens + headroom_tokens, 0.0, 0.0, now_s)
        closer = outlook(load.table, harming, nearest[soon], lengths.quantiles, foreseen_share)
        wait_s[soon] = np.maximum(wait_s[soon], closer.kv_wait_s)
        misses[soon], free_tokens[soon] = closer.expected_misses, closer.kv_free_tokens
    return Prospects(
        tuple(instances[int(position)] for position in nearest),
        wait_s,
        predictions.own_prefill_s[nearest],
        misses,
        free_tokens,
        predictions.instances.kv_capacity_tokens[nearest],
        float((predictions.backlog_s <= IDLE_S).mean()),
        foreseen_share,
    )


def least_wait_s(instances: Sequence[InstanceView], load: LoadView, now_s: float) -> float:
    """Until the first of the instances could begin with a prompt, whatever its length."""
    slots = load.slots(view.record.instance for view in instances)
    return float(predict(load.table, slots, 1, 0.0, 0.0, now_s).backlog_s.min())
