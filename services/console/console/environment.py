"""The environment each process of a stack runs in: what it needs and no more."""

import os
from collections.abc import Mapping

from tokenfleet.running_stack import RunRecord

PREFIX = "TOKENFLEET_"
OPERATOR = "operator"
OFF_THE_BUS = frozenset({"emulated-engine"})
"""Services that never connect to NATS, so they are given no password."""

POSTGRES_CLIENTS = frozenset({"goodput-accountant", "ingress"})
"""Services that keep something in Postgres: the ledger, and batches."""

BLOCK_HASHERS = frozenset({"ingress", "node-agent"})
"""Services that hash token blocks, so that they alone are given the secret."""

_SECRET_PARTS = ("NATS_PASSWORD", "NATS_USER", "NATS_URL", "POSTGRES_DSN", "API_KEY")


def nats_user(service: str) -> str:
    """The NATS user of a service (infra/nats/permissions.conf)."""
    return service.replace("-", "_")


def nats_variables(url: str, login: tuple[str, str] | None) -> dict[str, str]:
    """How a process connects to NATS."""
    variables = {f"{PREFIX}NATS_URL": url}
    if login:
        variables |= {f"{PREFIX}NATS_USER": login[0], f"{PREFIX}NATS_PASSWORD": login[1]}
    return variables


def service_variables(service: str, record: RunRecord) -> dict[str, str]:
    """The TOKENFLEET_* variables of one service of a running stack."""
    variables = {
        name: value
        for name, value in record.environment.items()
        if not any(part in name for part in _SECRET_PARTS)
    }
    if service not in OFF_THE_BUS:
        url = record.environment[f"{PREFIX}NATS_URL"]
        variables |= nats_variables(url, record.nats_logins.get(nats_user(service)))
    if service not in BLOCK_HASHERS:
        variables.pop(f"{PREFIX}BLOCK_SECRET", None)
    if service in POSTGRES_CLIENTS:
        variables[f"{PREFIX}POSTGRES_DSN"] = record.postgres_dsn
    return variables


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """A child's whole environment: ours without anybody's credentials, and its variables."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith((PREFIX, "NATS_PASSWORD_")) and any(part in name for part in _SECRET_PARTS))
    }
    return {**inherited, "PYTHONUNBUFFERED": "1", **variables}
