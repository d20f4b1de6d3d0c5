"""Ready files: few fields are needed, and a wrong one is explained."""

import json
from pathlib import Path
from typing import Any

import pytest

from node_agent.engine_folder import EngineFolder
from node_agent.policy.engine_spec import parse_ready_file
from tokenfleet.engine.profile import LLAMA70B_TP4_H100
from tokenfleet.errors import ConfigurationError

MINIMAL = {"url": "http://127.0.0.1:8000", "model": "m"}


def ready_file(**fields: Any) -> bytes:
    return json.dumps({**MINIMAL, **fields}).encode()


def test_url_and_model_suffice() -> None:
    spec = parse_ready_file(ready_file(url="https://engine.example:8000/"))
    assert spec.url == "https://engine.example:8000"
    assert spec.version == "1"
    assert spec.block_size_tokens == 16
    assert spec.resolved_profile() == LLAMA70B_TP4_H100


def test_an_own_kv_capacity_overrides_the_profile() -> None:
    spec = parse_ready_file(ready_file(profile="llama70b-tp4-h100", kv_capacity_tokens=1234))
    assert spec.resolved_profile().kv_capacity_tokens == 1234
    assert spec.resolved_profile().base_s == LLAMA70B_TP4_H100.base_s


def test_an_engine_without_events_has_no_endpoints() -> None:
    assert parse_ready_file(ready_file()).kv_endpoints == ()


def test_each_rank_publishes_and_replays_on_its_own_port() -> None:
    spec = parse_ready_file(
        ready_file(
            kv_events_endpoint="tcp://10.0.0.7:5557",
            kv_replay_endpoint="tcp://10.0.0.7:5657",
            data_parallel_size=3,
        )
    )
    assert spec.kv_endpoints == tuple(
        (f"tcp://10.0.0.7:{5557 + rank}", f"tcp://10.0.0.7:{5657 + rank}") for rank in range(3)
    )


def test_ranks_on_several_hosts_are_listed() -> None:
    events = ("tcp://10.0.0.7:5557", "tcp://10.0.0.8:5557")
    spec = parse_ready_file(ready_file(kv_events_endpoint=events, data_parallel_size=2))
    assert spec.kv_endpoints == tuple((address, None) for address in events)


def test_offloaded_blocks_are_remembered_in_proportion_unless_said_otherwise() -> None:
    spec = parse_ready_file(ready_file(kv_capacity_tokens=1600))
    assert spec.offloaded_limit_blocks == 16 * 100
    spec = parse_ready_file(ready_file(kv_capacity_tokens=1600, offloaded_kv_capacity_tokens=3200))
    assert spec.offloaded_limit_blocks == 200


def test_a_profile_can_be_given_in_place() -> None:
    profile = {
        "name": "cpu",
        "base_s": 0.1,
        "decode_s_per_request": 0.01,
        "decode_s_per_context_token": 0.0,
        "prefill_s_per_token": 0.001,
        "attention_s_per_token_pair": 0.0,
        "kv_capacity_tokens": 100,
        "iteration_budget_tokens": 10,
        "max_running_requests": 2,
    }
    assert parse_ready_file(ready_file(profile=profile)).resolved_profile().name == "cpu"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"{", "not a valid engine file"),
        (b'{"url": "http://h:1"}', "model"),
        (ready_file(url="ftp://h:1"), "url"),
        (ready_file(url="http://:80"), "url"),
        (ready_file(url="http://h:port"), "url"),
        (ready_file(profile="abacus"), "abacus"),
        (ready_file(block_size_tokens=0), "block_size_tokens"),
        (ready_file(kv_events_endpoint="tcp://*:5557"), "kv_events_endpoint"),
        (ready_file(kv_replay_endpoint="5558"), "kv_replay_endpoint"),
        (ready_file(kv_events_endpoint=["tcp://a:1", "tcp://b:1"]), "data_parallel_size is 1"),
        (ready_file(kv_events_endpoint="ipc:///run/kv", data_parallel_size=2), "list one for each rank"),
        (
            ready_file(
                kv_events_endpoint="tcp://a:5557", kv_replay_endpoint="tcp://a:5558", data_parallel_size=2
            ),
            "tcp://a:5558",
        ),
    ],
)
def test_a_wrong_file_is_refused_naming_what_is_wrong(data: bytes, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_ready_file(data)


class TestFolder:
    def test_files_come_go_and_change(self, tmp_path: Path) -> None:
        folder = EngineFolder(tmp_path)
        assert folder.scan() == {}
        file = tmp_path / "engine-a.json"
        file.write_bytes(ready_file(pid=1))
        assert folder.scan()["engine-a"].pid == 1
        file.write_bytes(ready_file(pid=1234))
        assert folder.scan()["engine-a"].pid == 1234
        file.unlink()
        assert folder.scan() == {}

    def test_a_wrong_file_leaves_the_others_and_its_own_former_content_alone(self, tmp_path: Path) -> None:
        (tmp_path / "good.json").write_bytes(ready_file())
        (tmp_path / "bad.json").write_bytes(b"[]")
        (tmp_path / "notes.txt").write_bytes(b"not an engine")
        folder = EngineFolder(tmp_path)
        assert folder.scan().keys() == {"good"}
        (tmp_path / "good.json").write_bytes(b"{half a fi")
        assert folder.scan().keys() == {"good"}
        (tmp_path / "bad.json").write_bytes(ready_file())
        assert folder.scan().keys() == {"good", "bad"}

    def test_a_missing_folder_has_no_engines_until_it_is_there(self, tmp_path: Path) -> None:
        folder = EngineFolder(tmp_path / "later")
        assert folder.scan() == {}
        (tmp_path / "later").mkdir()
        (tmp_path / "later" / "a.json").write_bytes(ready_file())
        assert folder.scan().keys() == {"a"}
