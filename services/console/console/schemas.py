"""JSON Schema of the msgspec contracts."""

import inspect
from typing import Any

import msgspec

from tokenfleet.contracts import dead_letters, fleet, latency, ledger, policy, requests, sites, situation

MODULES = (requests, fleet, policy, ledger, dead_letters, latency, situation, sites)


def schemas() -> dict[str, dict[str, Any]]:
    """A self-contained schema for each struct of the contracts, by name."""
    return {struct.__name__: msgspec.json.schema(struct) for module in MODULES for struct in _structs(module)}


def _structs(module: object) -> list[type[msgspec.Struct]]:
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, msgspec.Struct) and member.__module__ == getattr(module, "__name__", "")
    ]
