"""How to reach a running fleet: what `tokenfleet up` writes into its state folder, or what the user says."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lab.errors import ReplayError
from tokenfleet.settings import PREFIX, Settings, load

RUN_FILE = "run.json"


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet that is up."""

    api_url: str
    api_key: str | None = None
    settings: Settings
    """For NATS, as the operator."""
    time_scale: float = 1.0


class _RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay needs of run.json."""

    pid: int
    api_url: str
    time_scale: float
    environment: dict[str, str]
    """TOKENFLEET_* variables of a client of the stack."""


def running_stack(state_dir: Path) -> Stack | None:
    """The stack that runs from this state folder; None if none does.

    Raises:
        ReplayError: what it wrote cannot be read.
    """
    path = state_dir / RUN_FILE
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_RunRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ReplayError(f"{path} cannot be used: {error}. If no stack runs, delete it.") from error
    if not _alive(record.pid):
        return None
    return Stack(
        api_url=record.api_url,
        api_key=record.environment.get(f"{PREFIX}API_KEY"),
        settings=_settings(record.environment),
        time_scale=record.time_scale,
    )


def given_stack(api_url: str, api_key: str | None, time_scale: float) -> Stack:
    """A fleet somewhere else: its API as given, its NATS from the TOKENFLEET_* variables."""
    base = api_url.rstrip("/").removesuffix("/v1")
    return Stack(api_url=base, api_key=api_key, settings=load(Settings), time_scale=time_scale)


def _settings(environment: Mapping[str, str]) -> Settings:
    fields = {name.removeprefix(PREFIX).lower(): value for name, value in environment.items()}
    known = {name: value for name, value in fields.items() if name in Settings.model_fields}
    return Settings.model_validate(known)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
