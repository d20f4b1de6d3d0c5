"""Another policy, from a file: what it does not say stays as it was live."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.inspect import DictType, StructType, Type, UnionType, type_info

from tokenfleet.contracts.policy import Policy, problems
from tokenfleet.errors import PolicyError


def read_policy(path: Path, live: Policy) -> Policy:
    """The live policy with the settings of a file, `.json` or TOML, in the places of its own.

    Raises:
        PolicyError: the file cannot be read, or a setting is unknown, wrong, or in conflict with another; the message
            names it.
    """
    given = _parsed(path)
    if unknown := _unknown(given, type_info(Policy)):
        raise PolicyError(f"{path}: the policy has no setting {', '.join(unknown)}.")
    if not given:
        raise PolicyError(f"{path}: there is no setting in it, so nothing would differ from the live policy.")
    merged = _merged(msgspec.to_builtins(live), given)
    try:
        policy = msgspec.convert(merged, Policy)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$.")
        setting = where.rstrip("`")
        raise PolicyError(f"{path}: {setting}: {problem}." if setting else f"{path}: {problem}.") from error
    if found := problems(policy):
        raise PolicyError(f"{path}: {' '.join(found)}")
    return policy


def differences(live: Policy, other: Policy) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by their full names: how each is and how it would be."""
    before, after = _settings(msgspec.to_builtins(live)), _settings(msgspec.to_builtins(other))
    names = dict.fromkeys([*before, *after])
    return {
        name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    }


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path} cannot be read: {error}") from error
    try:
        given = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except (msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise PolicyError(f"{path} is not {kind}: {error}") from error
    if not isinstance(given, dict):
        raise PolicyError(f"{path}: a policy is an object of settings, not {type(given).__name__}.")
    return given


def _unknown(given: Any, kind: Type, prefix: str = "") -> list[str]:
    """Settings that there are not; values of the wrong kind are found when all is converted."""
    if isinstance(kind, UnionType):
        kind = next((one for one in kind.types if isinstance(one, StructType | DictType)), kind)
    if not isinstance(given, dict):
        return []
    if isinstance(kind, DictType):
        return [
            name
            for key, value in given.items()
            for name in _unknown(value, kind.value_type, f"{prefix}{key}.")
        ]
    if not isinstance(kind, StructType):
        return []
    fields = {field.encode_name: field.type for field in kind.fields}
    found = [f"{prefix}{key}" for key in given if key not in fields]
    for key, value in given.items():
        if key in fields:
            found += _unknown(value, fields[key], f"{prefix}{key}.")
    return found


def _merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in given.items():
        known = merged.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(known, value)
        else:
            merged[key] = value
    return merged


def _settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            settings |= _settings(value, f"{prefix}{key}.")
        else:
            settings[f"{prefix}{key}"] = value
    return settings
