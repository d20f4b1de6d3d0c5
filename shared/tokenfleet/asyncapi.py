"""The AsyncAPI document of the control plane, made from its pydantic contracts by FastStream."""

from typing import Any

from faststream import FastStream
from faststream.nats import NatsBroker
from faststream.specification import AsyncAPI

from tokenfleet import subjects
from tokenfleet.contracts.control import Adjusted, Capacity, GoodputWindow, Plan

CHANNELS = (
    (f"{subjects.PREFIX}.{{site}}.capacity.{{pool}}", Capacity, "How full a pool is, once a second."),
    (
        f"{subjects.PREFIX}.{{site}}.history.{{pool}}",
        Capacity,
        "The same, sampled and kept in the FLEET stream.",
    ),
    (f"{subjects.PREFIX}.{{site}}.goodput.{{pool}}", GoodputWindow, "What the ledger saw in a window."),
    (f"{subjects.PREFIX}.{{site}}.control.{{pool}}", Adjusted, "What SLOMax changed by itself, and why."),
    (f"{subjects.PREFIX}.{{site}}.plan", Plan, "Replicas that each pool should have, and why."),
    (f"{subjects.PREFIX}.{{site}}.planned", Plan, "The same when it changes, kept in the FLEET stream."),
)


def document() -> dict[str, Any]:
    """The AsyncAPI 3.0 document as plain data."""
    broker = NatsBroker()
    for subject, contract, description in CHANNELS:
        broker.publisher(subject, schema=contract, description=description)
    specification = AsyncAPI(broker, title="TokenFleet control plane", version="1")
    return FastStream(broker, specification=specification).schema.to_specification().to_jsonable()
