"""How to reach a running fleet: what `tokenfleet up` writes into its state folder, or what the user says."""

from pathlib import Path

import msgspec

from tokenfleet.running_stack import read_run_record
from tokenfleet.settings import Settings, load


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet that is up."""

    api_url: str
    api_key: str | None = None
    settings: Settings
    """For NATS, as the operator."""
    time_scale: float = 1.0


def running_stack(state_dir: Path) -> Stack | None:
    """The stack that runs from this state folder; None if none does.

    Raises:
        ConfigurationError: what it wrote cannot be read.
    """
    record = read_run_record(state_dir)
    if record is None:
        return None
    return Stack(
        api_url=record.api_url,
        api_key=record.api_key,
        settings=record.client_settings(),
        time_scale=record.time_scale,
    )


def given_stack(api_url: str, api_key: str | None, time_scale: float) -> Stack:
    """A fleet somewhere else: its API as given, its NATS from the TOKENFLEET_* variables."""
    base = api_url.rstrip("/").removesuffix("/v1")
    return Stack(api_url=base, api_key=api_key, settings=load(Settings), time_scale=time_scale)
