"""What is refused before anything is started, and how that is said."""

import socket
from pathlib import Path

import pytest

from console.health import ready_instances
from console.options import StackOptions
from console.preflight import check_port, check_postgres, external_logins, free_port
from console.stack import Stack
from console.state import StateFolder
from tokenfleet.errors import ConfigurationError, UnavailableError


def test_a_taken_port_is_named_with_the_option_that_changes_it():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}.*--port"):
            check_port("127.0.0.1", port)


def test_a_free_port_can_be_listened_on():
    check_port("127.0.0.1", free_port("127.0.0.1"))


async def test_a_postgres_that_does_not_answer_is_named_by_its_variable():
    with pytest.raises(UnavailableError, match="TOKENFLEET_POSTGRES_DSN"):
        await check_postgres(f"postgresql://someone@127.0.0.1:{free_port('127.0.0.1')}/ledger")


async def test_a_stack_refused_for_its_port_leaves_its_folder_free_and_empty_of_processes(tmp_path: Path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        stack = Stack(StackOptions(port=holder.getsockname()[1], state_dir=tmp_path))
        with pytest.raises(ConfigurationError):
            await stack.start()
    assert not stack.processes
    StateFolder(tmp_path).lock()


async def test_a_second_stack_on_a_folder_is_refused_without_harm_to_the_first(tmp_path: Path):
    first = StateFolder(tmp_path)
    first.lock()
    with pytest.raises(ConfigurationError, match="already runs"):
        await Stack(StackOptions(port=0, state_dir=tmp_path)).start()
    with pytest.raises(ConfigurationError, match="already runs"):
        StateFolder(tmp_path).lock()


def test_a_server_of_ones_own_is_used_with_one_login_or_one_per_service_or_none(
    monkeypatch: pytest.MonkeyPatch,
):
    assert external_logins() == {}
    monkeypatch.setenv("NATS_PASSWORD_SLOMAX", "p1")
    assert external_logins() == {"slomax": ("slomax", "p1")}
    monkeypatch.setenv("TOKENFLEET_NATS_USER", "everyone")
    monkeypatch.setenv("TOKENFLEET_NATS_PASSWORD", "p2")
    assert set(external_logins().values()) == {("everyone", "p2")}


def test_ready_instances_are_what_ingress_says_and_none_while_it_says_nothing():
    assert ready_instances({"instances": {"ready": 3, "known": 4}}) == 3
    assert ready_instances({"service": "ingress"}) == 0
