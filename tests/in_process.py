"""A service inside the test's own process, connected with its own permissions."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from conftest import NatsServer

from tokenfleet.bus import Bus
from tokenfleet.service import Service
from tokenfleet.settings import Settings


@asynccontextmanager
async def in_process(
    nats_server: NatsServer,
    user: str,
    start: Callable[[Service[Any]], Awaitable[None]],
    settings_type: type[Settings] = Settings,
    **values: Any,
) -> AsyncIterator[Service[Any]]:
    """Args:
    user: the service's NATS user, which is also its name.
    start: of the service's `main`.
    settings_type: its settings,
    values: and those that differ from the defaults.
    """
    settings = nats_server.settings(user, settings_type, **values)
    service = Service(user, settings, await Bus.connect(settings, user))
    await start(service)
    await service.start_broker()
    try:
        yield service
    finally:
        await service.stop()
