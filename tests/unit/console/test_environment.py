"""Each process gets the credentials it needs and nobody else's."""

import pytest

from console.environment import child_environment, service_variables
from tokenfleet.running_stack import RunRecord

RECORD = RunRecord(
    pid=1,
    api_url="http://127.0.0.1:8080",
    time_scale=5.0,
    environment={
        "TOKENFLEET_API_KEY": "tf-secret",
        "TOKENFLEET_SITE": "local",
        "TOKENFLEET_TIME_SCALE": "5",
        "TOKENFLEET_BLOCK_SECRET": "blocks",
        "TOKENFLEET_NATS_URL": "nats://127.0.0.1:1",
        "TOKENFLEET_NATS_USER": "operator",
        "TOKENFLEET_NATS_PASSWORD": "operator-password",
    },
    nats_logins={"slomax": ("slomax", "one"), "goodput_accountant": ("goodput_accountant", "two")},
    postgres_dsn="postgresql://ledger",
)


def test_a_service_connects_as_itself_not_as_the_operator():
    variables = service_variables("slomax", RECORD)
    assert variables["TOKENFLEET_NATS_USER"] == "slomax"
    assert variables["TOKENFLEET_NATS_PASSWORD"] == "one"
    assert variables["TOKENFLEET_TIME_SCALE"] == "5"
    assert "tf-secret" not in variables.values()


def test_only_those_who_keep_something_in_postgres_are_told_of_it():
    assert service_variables("goodput-accountant", RECORD)["TOKENFLEET_POSTGRES_DSN"] == "postgresql://ledger"
    assert service_variables("ingress", RECORD)["TOKENFLEET_POSTGRES_DSN"] == "postgresql://ledger"
    assert "TOKENFLEET_POSTGRES_DSN" not in service_variables("slomax", RECORD)


def test_only_those_who_hash_blocks_are_given_the_secret():
    assert service_variables("ingress", RECORD)["TOKENFLEET_BLOCK_SECRET"] == "blocks"
    assert service_variables("node-agent", RECORD)["TOKENFLEET_BLOCK_SECRET"] == "blocks"
    assert "blocks" not in service_variables("tokenpilot", RECORD).values()
    assert "blocks" not in service_variables("emulated-engine", RECORD).values()


def test_an_engine_gets_no_way_onto_nats():
    assert not [name for name in service_variables("emulated-engine", RECORD) if "NATS" in name]


def test_our_own_credentials_are_not_inherited_but_other_variables_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKENFLEET_POSTGRES_DSN", "postgresql://mine")
    monkeypatch.setenv("NATS_PASSWORD_INGRESS", "p1")
    monkeypatch.setenv("TOKENFLEET_LOG_LEVEL", "debug")
    environment = child_environment({"TOKENFLEET_SITE": "east"})
    assert "TOKENFLEET_POSTGRES_DSN" not in environment
    assert "NATS_PASSWORD_INGRESS" not in environment
    assert environment["TOKENFLEET_LOG_LEVEL"] == "debug"
    assert environment["TOKENFLEET_SITE"] == "east"
