"""`KEY=VALUE` on settings that are structs: keys are dotted paths, values are JSON or plain words."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, cast

import msgspec

from tokenfleet.errors import PolicyError

S = TypeVar("S", bound=msgspec.Struct)


def complete(value: Any) -> Any:
    """A struct as plain data with every field, also those that encoding leaves out because they are as by default."""
    if isinstance(value, msgspec.Struct):
        return {name: complete(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {key: complete(inner) for key, inner in cast(Mapping[str, Any], value).items()}
    if isinstance(value, tuple):
        return [complete(inner) for inner in cast(tuple[Any, ...], value)]
    return value


def settings_of(value: msgspec.Struct) -> dict[str, Any]:
    """Each single setting by its dotted key."""
    return _flat("", complete(value))


def assign(value: S, assignments: Sequence[str]) -> S:
    """The struct with the assignments applied, `objectives.batch.e2e_s=60` to what is nested; null takes a group out.

    Raises:
        PolicyError: an assignment is malformed, names no setting or has a value of the wrong kind.
    """
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise PolicyError(
                f"{assignment!r} is not an assignment; write KEY=VALUE, as in {_example(value)}."
            )
        content = complete(value)
        path, new = key.split("."), _value(text)
        if new is None and isinstance(_find(content, path), dict):
            del _find(content, path[:-1])[path[-1]]
        else:
            _put(content, path, new, key)
        value = _converted(content, type(value), assignment)
    return value


def reset(value: S, defaults: S, keys: Sequence[str]) -> S:
    """The struct with some settings, or groups of them, as in `defaults`; what these do not have is taken out.

    Raises:
        PolicyError: a key is no setting.
    """
    for key in keys:
        content = complete(value)
        path = key.split(".")
        parent = _find(content, path[:-1])
        if not isinstance(parent, dict) or path[-1] not in parent:
            raise _unknown(key, value)
        default = _find(complete(defaults), path)
        if default is None:
            del parent[path[-1]]
        else:
            parent[path[-1]] = default
        value = _converted(content, type(value), key)
    return value


def differences(before: msgspec.Struct, after: msgspec.Struct) -> dict[str, tuple[Any, Any]]:
    """The settings in which two structs differ, with both values; None where one has no such setting."""
    old, new = (
        {key: value for key, value in settings_of(struct).items() if value != {}}
        for struct in (before, after)
    )
    return {
        key: (old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    }


def _converted(content: dict[str, Any], struct: type[S], assignment: str) -> S:
    try:
        changed = msgspec.convert(content, struct)
    except msgspec.ValidationError as error:
        raise PolicyError(f"{assignment} would not be valid: {error}.") from error
    # Unknown keys convert silently (an older reader must accept a newer policy), so look for them here.
    known = settings_of(changed)
    for key in _flat("", content):
        if key not in known:
            raise _unknown(key, changed)
    return changed


def _unknown(key: str, value: msgspec.Struct) -> PolicyError:
    fields, known = value.__struct_fields__, list(settings_of(value))
    top, name = key.partition(".")[0], key.rpartition(".")[2]
    near = get_close_matches(key, known, n=3, cutoff=0.7)
    if not near and top not in fields:
        near = get_close_matches(top, fields, n=3, cutoff=0.7)
    if not near:  # the right name in the wrong place
        near = [each for each in known if get_close_matches(name, [each.rpartition(".")[2]], cutoff=0.7)][:4]
    if near:
        return PolicyError(f"There is no setting named {key}. Nearest: {', '.join(near)}.")
    return PolicyError(f"There is no setting named {key}. Known: {', '.join(fields)}.")


def _put(content: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    *parents, last = path
    for part in parents:
        inner = content.setdefault(part, {})
        if not isinstance(inner, dict):
            raise PolicyError(f"{key}: {part} is a single value and has no parts.")
        content = cast(dict[str, Any], inner)
    content[last] = value


def _find(content: Any, path: Sequence[str]) -> Any:
    for part in path:
        content = cast(dict[str, Any], content).get(part) if isinstance(content, dict) else None
    return content


def _flat(prefix: str, content: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:  # an empty group is a setting of its own: nothing is in it
            found |= _flat(f"{prefix}{key}.", cast(dict[str, Any], value))
        else:
            found[f"{prefix}{key}"] = value
    return found


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _example(value: msgspec.Struct) -> str:
    return next(f"{key}={default}" for key, default in settings_of(value).items() if default is not None)
