"""Encode and decode one message: msgspec's JSON and MessagePack against pydantic and the standard library."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pydantic
import pytest
from fleets import request, state

from tokenfleet.blocks import pack
from tokenfleet.bus.codec import decode, encode
from tokenfleet.contracts.fleet import KvDelta
from tokenfleet.contracts.requests import Submitted, event_id

SUBMITTED = Submitted(
    event_id=event_id("4f2c0ad1b2c84e0f9d7a1f6d2f6f0c11", 1, "submitted"),
    request_id="4f2c0ad1b2c84e0f9d7a1f6d2f6f0c11",
    attempt=1,
    tenant="tenant-1",
    pool="llama-70b",
    site="local",
    time_ns=1_764_590_400_000_000_000,
    request=request(
        12_800,
        blocks=pack((2**64 - 1) // 201 * block for block in range(1, 201)),
        stream=True,
        deadline_ns=1_764_591_000_000_000_000,
        client_request_id="run-1-00042",
    ),
)
"""With the hashes of 200 blocks."""
STATE = state(
    "instance-1",
    time_ns=1_764_590_400_000_000_000,
    waiting=3,
    running=41,
    kv_usage=0.6180339,
    prefix_queries_tokens=81_234_567,
    prefix_hits_tokens=12_345_678,
    prompt_tokens=81_234_567,
    generation_tokens=2_345_678,
    preemptions=4,
)
KV_DELTA = KvDelta(
    instance="instance-1",
    generation=1,
    sequence=42_000,
    stored=SUBMITTED.request.blocks[:800],
    removed=SUBMITTED.request.blocks[800:],
)

RoundTrip = Callable[[], Any]
"""Encodes and decodes once; returns what came out, as a msgspec struct would be."""


def msgspec_json(message: msgspec.Struct) -> RoundTrip:
    return lambda: decode(encode(message), type(message))


def msgspec_msgpack(message: msgspec.Struct) -> RoundTrip:
    return lambda: decode(encode(message, "msgpack"), type(message), "msgpack")


def pydantic_json(message: msgspec.Struct) -> RoundTrip:
    twin = pydantic_twin(type(message))
    model = twin.model_validate(msgspec.to_builtins(message, builtin_types=(bytes,)))
    return lambda: twin.model_validate_json(model.model_dump_json(by_alias=True, exclude_defaults=True))


def stdlib_json(message: msgspec.Struct) -> RoundTrip:
    """Dictionaries that nothing validates; bytes travel as Base64 as in the others."""
    plain = msgspec.to_builtins(message, builtin_types=(bytes,))

    def both_ways() -> Any:
        data = json.dumps(plain, separators=(",", ":"), default=lambda part: base64.b64encode(part).decode())
        back = json.loads(data.encode())
        hashes = back.get("request", back)
        for name in {"blocks", "stored", "removed"} & hashes.keys():
            hashes[name] = base64.b64decode(hashes[name])
        return back

    return both_ways


def pydantic_twin(struct: type[msgspec.Struct]) -> type[pydantic.BaseModel]:
    """A pydantic model with the fields, names and defaults of a msgspec struct."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        nested = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        default = ... if field.default is msgspec.NODEFAULT else field.default
        # The underscore keeps `schema` from shadowing a method of BaseModel.
        fields[f"{field.name}_"] = (
            pydantic_twin(field.type) if nested else field.type,
            pydantic.Field(default, alias=field.encode_name),
        )
    config = pydantic.ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")
    return pydantic.create_model(struct.__name__, __config__=config, **fields)


WAYS = [msgspec_json, msgspec_msgpack, pydantic_json, stdlib_json]


CPU_TIME = {"timer": time.process_time, "min_time": 0.01, "max_time": 0.5}


@pytest.mark.benchmark(group="serialisation: Submitted with 200 block hashes", **CPU_TIME)
@pytest.mark.parametrize("way", WAYS)
def test_submitted(benchmark, way):
    compare(benchmark, way, SUBMITTED)


@pytest.mark.benchmark(group="serialisation: InstanceState", **CPU_TIME)
@pytest.mark.parametrize("way", WAYS)
def test_instance_state(benchmark, way):
    compare(benchmark, way, STATE)


@pytest.mark.benchmark(group="serialisation: KvDelta with 200 block hashes", **CPU_TIME)
@pytest.mark.parametrize("way", WAYS)
def test_kv_delta(benchmark, way):
    compare(benchmark, way, KV_DELTA)


def compare(benchmark, way: Callable[[msgspec.Struct], RoundTrip], message: msgspec.Struct) -> None:
    benchmark.extra_info |= {
        "json_bytes": len(encode(message)),
        "msgpack_bytes": len(encode(message, "msgpack")),
    }
    came_back = benchmark(way(message))
    if isinstance(came_back, pydantic.BaseModel):
        came_back = came_back.model_dump(by_alias=True, exclude_defaults=True)
    if isinstance(came_back, dict):
        came_back = msgspec.convert(came_back, type(message))
    assert came_back == message
