"""The state folder: what a stack keeps between runs, and what other commands need to know of a running one.

api-key          the development key (0600)
secrets.json     passwords and the block secret (0600)
lock             held while a stack runs
run.json         how to reach the running stack (0600); gone when it stops
logs/            one file per process
nats/ postgres/  the servers' data
engines/<node>/  one ready file per engine
"""

import fcntl
import os
import secrets
from pathlib import Path

import msgspec

from tokenfleet.errors import ConfigurationError
from tokenfleet.running_stack import RUN_FILE, RunRecord, read_run_record, running_record


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Made once per state folder."""

    block_secret: str
    nats_passwords: dict[str, str]


class StateFolder:
    """The files of one stack. Paths are absolute, since services may run elsewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.logs = self.root / "logs"
        self.engines = self.root / "engines"
        self._run_file = self.root / RUN_FILE
        self._lock_file = self.root / "lock"
        self._lock: int | None = None

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.logs / f"{name}.log"

    def lock(self) -> None:
        """Claim the folder for this process, creating it if need be.

        Raises:
            ConfigurationError: another stack runs here, or the folder cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"The state folder {self.root} cannot be used: {error}. Choose another with --state-dir."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode().strip() or "unknown"
            os.close(descriptor)
            raise ConfigurationError(
                f"TokenFleet already runs from {self.root} (pid {holder}). Stop it with Ctrl-C or `kill {holder}`, "
                "or start another one with a different --state-dir and --port."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor

    def unlock(self) -> None:
        """Let another stack use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def secrets(self, users: tuple[str, ...]) -> Secrets:
        """This folder's secrets, made at the first call. NATS users added since get a password too."""
        path = self.root / "secrets.json"
        known = msgspec.json.decode(path.read_bytes(), type=Secrets) if path.exists() else None
        if known and set(users) <= known.nats_passwords.keys():
            return known
        # A letter first: NATS reads these from its environment as config values, where digits make a number.
        passwords = {user: f"p{secrets.token_hex(24)}" for user in users}
        made = Secrets(
            block_secret=known.block_secret if known else secrets.token_urlsafe(32),
            nats_passwords=passwords | (known.nats_passwords if known else {}),
        )
        _write_private(path, msgspec.json.encode(made))
        return made

    def api_key(self) -> str:
        """The development key, made at the first call."""
        path = self.root / "api-key"
        if not path.exists():
            _write_private(path, f"tf-{secrets.token_urlsafe(32)}\n".encode())
        return path.read_text().strip()

    def write_run(self, record: RunRecord) -> None:
        """Tell other commands how to reach this stack."""
        _write_private(self._run_file, msgspec.json.format(msgspec.json.encode(record)))

    def remove_run(self) -> None:
        self._run_file.unlink(missing_ok=True)

    def read_run(self) -> RunRecord | None:
        """The running stack, or None when none runs."""
        return read_run_record(self.root)

    def running(self) -> RunRecord:
        """The running stack.

        Raises:
            UnavailableError: none runs.
        """
        return running_record(self.root)


def _write_private(path: Path, data: bytes) -> None:
    """Replace a file's content at once; only its owner may read it."""
    partial = path.with_name(f"{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    partial.replace(path)
