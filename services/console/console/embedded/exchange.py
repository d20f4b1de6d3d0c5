"""A site's exchange: a NATS server that keeps nothing and joins the site's own one to the other sites'."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from console.embedded.nats import ADVICE, configuration_file, greets, server_binary
from console.process import ProcessSpec
from tokenfleet import subjects

_NOWHERE = "127.0.0.1:1"
"""Advertised to the other exchanges, which would otherwise learn from each other how to pass by the emulated links."""
_HOST = "127.0.0.1"


class EmbeddedExchange:
    """One exchange, at ports that stay the same."""

    def __init__(
        self,
        site: str,
        folder: Path,
        *,
        leaf_port: int,
        route_port: int,
        peer_ports: Sequence[int],
        site_password: str,
        exchange_password: str,
    ) -> None:
        """`peer_ports`: of the links to the exchanges that this one calls, which are those of the sites before it."""
        self._site = site
        self._folder = folder.resolve()
        self._leaf_port = leaf_port
        self._route_port = route_port
        self._peer_ports = peer_ports
        self._site_password = site_password
        self._exchange_password = exchange_password

    @property
    def leaf_url(self) -> str:
        """Where the site's NATS joins, with its login."""
        return f"nats-leaf://site:{self._site_password}@{_HOST}:{self._leaf_port}"

    def spec(self, log_path: Path) -> ProcessSpec:
        """How to run it.

        Raises:
            ConfigurationError: its binary or its configuration is missing.
        """
        routes = [
            f"nats-route://exchange:{self._exchange_password}@{_HOST}:{port}" for port in self._peer_ports
        ]
        source = configuration_file("exchange.conf")
        configuration = self._folder / "exchange.conf"

        def prepare() -> None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copyfile(source, configuration)

        return ProcessSpec(
            name=f"exchange-{self._site}",
            command=(server_binary(), "-c", str(configuration)),
            environment={
                "EXCHANGE_NAME": f'"exchange-{subjects.domain(self._site)}"',
                "EXCHANGE_LEAF_LISTEN": f'"{_HOST}:{self._leaf_port}"',
                "EXCHANGE_ROUTE_LISTEN": f'"{_HOST}:{self._route_port}"',
                "EXCHANGE_ADVERTISE": f'"{_NOWHERE}"',
                "EXCHANGE_ROUTES": json.dumps(routes),
                "NATS_PASSWORD_SITE": self._site_password,
                "NATS_PASSWORD_EXCHANGE": self._exchange_password,
            },
            log_path=log_path,
            prepare=prepare,
            ready=lambda: greets(self._leaf_port),
            stop_timeout_s=5.0,
            advice=ADVICE,
        )
