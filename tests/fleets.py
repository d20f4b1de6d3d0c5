"""Small fleets and requests for tests: only what a test is about needs to be said."""

from typing import Any

import msgspec

from tokenfleet.contracts.fleet import EngineProfile, InstanceRecord, InstanceState
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.engine.profile import LLAMA70B_TP4_H100
from tokenfleet.fleet_view import FleetView, InstanceView

MODEL, VERSION = "llama-70b", "v1"
POOL = f"{MODEL}@{VERSION}"
PROFILE: EngineProfile = LLAMA70B_TP4_H100


def record(instance: str, **changes: Any) -> InstanceRecord:
    """A registered instance."""
    base = InstanceRecord(
        instance=instance,
        node="node-1",
        site="local",
        model=MODEL,
        version=VERSION,
        url="http://127.0.0.1:1",
        generation=1,
        profile=PROFILE,
        block_size_tokens=64,
        kv_events=True,
    )
    return msgspec.structs.replace(base, **changes)


def state(instance: str, **changes: Any) -> InstanceState:
    """A reading of an idle instance."""
    base = InstanceState(
        instance=instance,
        generation=1,
        pool=POOL,
        site="local",
        time_ns=1,
        reachable=True,
        waiting=0,
        running=0,
        kv_usage=0.0,
    )
    return msgspec.structs.replace(base, **changes)


def view(instance: str, **changes: Any) -> InstanceView:
    """An instance alive at time 0 with an idle reading."""
    return InstanceView(record(instance, **changes), 0.0, state(instance), heard_s=0.0)


def fleet(*instances: str, now_s: float = 0.0) -> FleetView:
    """A fleet of instances that are all alive at `now_s`."""
    fleet_view = FleetView()
    for name in instances:
        fleet_view.apply_record(name, record(name), now_s)
        fleet_view.apply_state(state(name), now_s)
    return fleet_view


def request(input_tokens: int = 1_000, **changes: Any) -> RequestSpec:
    """A request for the model, entered here."""
    base = RequestSpec(
        model=MODEL,
        entry_site="local",
        ingress="ingress-1",
        input_tokens=input_tokens,
        max_output_tokens=256,
        block_size_tokens=64,
        stream=True,
    )
    return msgspec.structs.replace(base, **changes)
