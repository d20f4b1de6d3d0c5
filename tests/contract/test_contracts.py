"""Messages keep their meaning across versions.

`golden/` holds messages as version 1 wrote them. They must decode for ever; a change that breaks one needs a
new schema version and a decoder for the old form, never a new golden file.
"""

import json
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.bus.codec import decode, encode
from tokenfleet.contracts.fleet import EngineProfile, InstanceRecord, InstanceState, KvDelta, KvSnapshot
from tokenfleet.contracts.latency import PoolLatency
from tokenfleet.contracts.ledger import Percentiles, Report, ReportRequest, Summary
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import EVENT_TYPES, Ended, Weighed, event_id, terminal_event_id
from tokenfleet.contracts.sites import Fared, Lease, LeaseAsk, LeaseGrant, SiteSummary, Waiting
from tokenfleet.contracts.situation import Situation
from tokenfleet.errors import ContractError

GOLDEN = Path(__file__).parent / "golden"
TYPES: dict[str, type[Any]] = {
    **EVENT_TYPES,
    "instance_record": InstanceRecord,
    "policy": Policy,
    "tenant": Tenant,
    "situation": Situation,
    "site_summary": SiteSummary,
    "lease_ask": LeaseAsk,
    "lease_grant": LeaseGrant,
    "fared": Fared,
}
STRUCTS = [
    *dict.fromkeys(EVENT_TYPES.values()),
    InstanceRecord, InstanceState, KvDelta, KvSnapshot, EngineProfile, Policy, Tenant, ReportRequest, Report,
    Summary, Percentiles, PoolLatency, Situation, SiteSummary, Waiting, Lease, LeaseAsk, LeaseGrant, Fared,
    Weighed,
]  # fmt: skip


def golden_files() -> list[Path]:
    return sorted(GOLDEN.glob("*.json"))


def test_every_event_has_a_golden_message():
    written = {path.name.split(".")[0] for path in golden_files()}
    outcomes = {name for name, kind in EVENT_TYPES.items() if kind is Ended}
    assert written >= (EVENT_TYPES.keys() - outcomes) | {"completed"}


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: path.name)
def test_a_message_written_by_version_1_still_means_the_same(path: Path):
    message = decode(path.read_bytes(), TYPES[path.name.split(".")[0]])
    assert says(json.loads(encode(message)), json.loads(path.read_text()))


def says(now: Any, written: Any) -> bool:
    """Whether all that was written is still said; a later version may say more."""
    if isinstance(written, dict):
        return all(key in now and says(now[key], value) for key, value in written.items())
    if isinstance(written, list):
        return len(now) == len(written) and all(map(says, now, written))
    return now == written


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: path.name)
def test_fields_that_a_newer_version_adds_are_ignored(path: Path):
    kind = TYPES[path.name.split(".")[0]]
    newer = {**json.loads(path.read_text()), "field_of_tomorrow": {"a": [1]}}
    assert decode(json.dumps(newer).encode(), kind) == decode(path.read_bytes(), kind)


st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Valid values of a field's type, within the bounds that the contract gives it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return bounded(arguments[0], arguments[1])
    if origin in (Union, UnionType):
        return st.one_of(*map(values, arguments))
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        # Each field by its type: what stands for an empty dict by default is no value.
        hints = get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})
    return st.from_type(kind)


def bounded(kind: Any, bounds: msgspec.Meta) -> st.SearchStrategy[Any]:
    least = bounds.ge if bounds.gt is None else bounds.gt
    if kind is int:
        return st.integers(None if least is None else int(least) + (bounds.gt is not None), 2**63 - 1)
    return st.floats(
        least, bounds.le, exclude_min=bounds.gt is not None, allow_nan=False, allow_infinity=False
    )


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
@given(data=st.data())
@settings(max_examples=15)
def test_every_struct_survives_both_encodings(struct: type[msgspec.Struct], data: st.DataObject):
    value = data.draw(values(struct))
    assert decode(encode(value, "json"), struct, "json") == value
    assert decode(encode(value, "msgpack"), struct, "msgpack") == value


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"event_id": 1}', b"\xff\xfe", b"null"])
def test_what_is_not_a_message_is_a_contract_error(broken: bytes):
    with pytest.raises(ContractError):
        decode(broken, Ended)


def test_the_same_fact_has_the_same_id_and_a_request_has_one_end():
    assert event_id("r", 1, "routed") == event_id("r", 1, "routed") != event_id("r", 2, "routed")
    assert terminal_event_id("r") == "r.end"


def test_a_policy_out_of_range_does_not_decode():
    with pytest.raises(ContractError, match="wait_share_of_slack"):
        decode(b'{"wait_share_of_slack": 1.5}', Policy)
