"""FastStream for the control plane: capacity, goodput windows and plans, at most a few messages a second.

The decision path does not go this way: a FastStream message costs 5 to 7 times the CPU of one on
`tokenfleet.bus` (docs/adr/0003).
"""

from typing import Any

from faststream.nats import NatsBroker
from faststream.nats.security import NatsUserPassword

from tokenfleet.settings import Settings


async def connect_broker(settings: Settings, name: str) -> NatsBroker:
    """A broker on its own connection, not yet started; declare subscribers on it first."""
    options: dict[str, Any] = {
        "name": f"{name}-control",
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.25,
        "logger": None,
        "graceful_timeout": 2.0,
    }
    if settings.nats_user:
        password = settings.nats_password
        options |= {
            "security": NatsUserPassword(settings.nats_user, password.get_secret_value() if password else ""),
            "inbox_prefix": f"_INBOX_{settings.nats_user}",
        }
    return NatsBroker(settings.nats_url, **options)
