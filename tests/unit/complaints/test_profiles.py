"""What users of other routers report of engine profiles, turned into what TokenFleet does instead.

Row 32 (aibrix #1567, #1334): routing by objectives silently did nothing where a profile was missing or held NaN.
"""

import json

import msgspec
import pytest

from node_agent.policy.engine_spec import parse_ready_file
from tokenfleet.bus.codec import decode
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.engine.profile import LLAMA70B_TP4_H100
from tokenfleet.errors import ConfigurationError, ContractError

FIGURES = msgspec.to_builtins(LLAMA70B_TP4_H100)


def ready_file(profile: object) -> bytes:
    return json.dumps({"url": "http://10.0.0.7:8000", "model": "llama", "profile": profile}).encode()


def test_a_good_profile_of_ones_own_is_taken():
    assert parse_ready_file(ready_file(FIGURES)).resolved_profile() == LLAMA70B_TP4_H100


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.01, None, "fast"])
@pytest.mark.parametrize("field", ["prefill_s_per_token", "base_s"])
def test_a_figure_that_is_none_refuses_the_engine_by_name(field: str, value: object):
    with pytest.raises(ConfigurationError, match=r"not a valid engine file.*"):
        parse_ready_file(ready_file({**FIGURES, field: value}))


@pytest.mark.parametrize("field", ["kv_capacity_tokens", "iteration_budget_tokens", "max_running_requests"])
def test_a_capacity_of_nothing_is_refused(field: str):
    with pytest.raises(ConfigurationError, match=field):
        parse_ready_file(ready_file({**FIGURES, field: 0}))


@pytest.mark.parametrize(
    "field", sorted(FIGURES.keys() - {"max_context_tokens", "restore_s_per_token", "gpus"})
)
def test_a_missing_figure_is_named(field: str):
    with pytest.raises(ConfigurationError, match=field):
        parse_ready_file(ready_file({key: value for key, value in FIGURES.items() if key != field}))


def test_an_unknown_profile_is_answered_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=LLAMA70B_TP4_H100.name):
        parse_ready_file(ready_file("h200"))


def test_no_decider_takes_such_a_profile_from_the_registry_either():
    record = {
        "instance": "a", "node": "n", "site": "local", "model": "m", "version": "1", "url": "http://a:1",
        "generation": 1, "block_size_tokens": 16,
    }  # fmt: skip
    good = json.dumps({**record, "profile": FIGURES}).encode()
    assert decode(good, InstanceRecord).profile == LLAMA70B_TP4_H100
    with pytest.raises(ContractError, match="base_s"):
        decode(json.dumps({**record, "profile": {**FIGURES, "base_s": -1.0}}).encode(), InstanceRecord)
