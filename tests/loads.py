"""Loaded engines for tests: only what a test is about needs to be said."""

import numpy as np
from fleets import record

from tokenfleet.load import LoadView, Outlook, OutputLengths, Predictions, outlook, predict
from tokenfleet.load.table import InstanceColumns

TIGHT_TPOT_S, LOOSE_TPOT_S = 0.03, 10.0
"""A step of a reference engine takes 15 ms."""


def idle(*instances: str) -> LoadView:
    """Instances that have just registered."""
    load = LoadView()
    for instance in instances:
        load.joined(record(instance))
    return load


def met(
    load: LoadView,
    instance: str = "a",
    tokens: int = 1_000,
    *,
    reused: float = 0.0,
    offloaded: float = 0.0,
    now_s: float = 0.0,
) -> Predictions:
    """What a prompt would meet at one instance (arrays of one)."""
    return predict(load.table, load.slots([instance]), tokens, reused, offloaded, now_s)


def ttft_s(
    load: LoadView, instance: str = "a", tokens: int = 1_000, *, reused: float = 0.0, now_s: float = 0.0
) -> float:
    """When its first token would come."""
    return float(met(load, instance, tokens, reused=reused, now_s=now_s).ttft_s[0])


def looked_at(
    load: LoadView,
    instance: str = "a",
    tokens: int = 1_000,
    *,
    now_s: float = 0.0,
    lengths: OutputLengths | None = None,
) -> Outlook:
    """A closer look at one instance (arrays of one)."""
    predictions = met(load, instance, tokens, now_s=now_s)
    return outlook(load.table, predictions, np.array([0]), (lengths or OutputLengths()).quantiles)


def decode(
    load: LoadView,
    request_id: str,
    instance: str = "a",
    tokens: int = 1_000,
    *,
    now_s: float = 0.0,
    tpot_objective_s: float | None = None,
    max_output_tokens: int = 0,
    length_row: int = 0,
) -> None:
    """A request begins to decode at an instance that was free for it."""
    load.routed(
        request_id,
        1,
        instance,
        tokens,
        tokens - 1,
        now_s,
        tpot_objective_s=tpot_objective_s,
        max_output_tokens=max_output_tokens,
        length_row=length_row,
    )
    load.first_token(request_id, now_s)


def at(load: LoadView, instance: str = "a") -> InstanceColumns[float]:
    """What the table says of one instance."""
    return InstanceColumns(*(float(column[0]) for column in load.table.instances(load.slots([instance]))))
