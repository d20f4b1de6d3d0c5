"""How to reach a stack that runs on this machine: the record that `tokenfleet up` keeps in its state folder."""

import os
from pathlib import Path

import msgspec

from tokenfleet.errors import ConfigurationError, UnavailableError
from tokenfleet.settings import PREFIX, Settings, load

DEFAULT_STATE_DIR = ".tokenfleet"
RUN_FILE = "run.json"


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the running stack."""

    name: str
    pid: int | None
    """None while it is down, waiting to be restarted."""
    restarts: int
    log: str


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A running stack."""

    pid: int
    api_url: str
    time_scale: float
    environment: dict[str, str]
    """TOKENFLEET_* variables of a client of the stack, which is the operator on NATS."""
    nats_logins: dict[str, tuple[str, str]]
    """User name and password of each service; empty when the NATS server asks for none."""
    postgres_dsn: str
    processes: tuple[ProcessRecord, ...] = ()
    site_dirs: dict[str, str] = {}
    """Of a stack of several sites: the state folder of each, which the same commands take. This record is of the first."""
    links_url: str | None = None
    """Where their links are shown and changed."""

    @property
    def api_key(self) -> str | None:
        return self.environment.get(f"{PREFIX}API_KEY")

    def client_settings(self) -> Settings:
        """Settings of a client of the stack."""
        values = {name.removeprefix(PREFIX).lower(): value for name, value in self.environment.items()}
        return Settings.model_validate({k: v for k, v in values.items() if k in Settings.model_fields})


def default_state_dir() -> Path:
    """TOKENFLEET_STATE_DIR, or .tokenfleet in the current folder."""
    return Path(os.environ.get(f"{PREFIX}STATE_DIR", DEFAULT_STATE_DIR))


def read_run_record(state_dir: Path) -> RunRecord | None:
    """The stack running from a state folder, or None when none runs (whatever a killed one left behind).

    Raises:
        ConfigurationError: the record cannot be read.
    """
    path = state_dir / RUN_FILE
    try:
        record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); if no stack runs, delete it.") from error
    return record if _alive(record.pid) else None


def running_record(state_dir: Path) -> RunRecord:
    """The stack running from a state folder.

    Raises:
        UnavailableError: none runs.
    """
    record = read_run_record(state_dir)
    if record is None:
        raise UnavailableError(
            f"No stack runs from {state_dir.resolve()}. Start one with `tokenfleet up`, or name its folder with "
            "--state-dir or TOKENFLEET_STATE_DIR."
        )
    return record


def operator_settings(state_dir: Path | None = None) -> Settings:
    """How a command reaches NATS: TOKENFLEET_NATS_URL if set, else the stack running from the state folder.

    Raises:
        UnavailableError: neither is there.
    """
    if os.environ.get(f"{PREFIX}NATS_URL"):
        return load(Settings)
    return running_record(state_dir or default_state_dir()).client_settings()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
