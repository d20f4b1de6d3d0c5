"""An accountant in the test's own process, and requests for its ledger."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from conftest import NatsServer
from pydantic import SecretStr

from goodput_accountant.main import start
from goodput_accountant.settings import AccountantSettings
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.requests import Ended, Objective, terminal_event_id
from tokenfleet.service import Service

SITE = "local"
POOL = "llama-70b@1"


def ended_request(request_id: str, **changes: Any) -> Ended:
    """A good request, ending now."""
    now_ns = time.time_ns()
    fields: dict[str, Any] = {
        "event_id": terminal_event_id(request_id),
        "request_id": request_id,
        "attempt": 1,
        "tenant": "acme",
        "pool": POOL,
        "site": SITE,
        "time_ns": now_ns,
        "request_class": "interactive",
        "outcome": "completed",
        "reason": "stop",
        "status": 200,
        "model": "llama-70b",
        "stream": True,
        "submitted_ns": now_ns - 1_000_000_000,
        "e2e_s": 1.0,
        "admitted": True,
        "instance": "engine-1",
        "objective": Objective(ttft_s=4.0, tpot_s=0.1),
        "input_tokens": 1000,
        "reused_tokens": 500,
        "output_tokens": 10,
        "ttft_s": 0.5,
        "tpot_s": 0.05,
    }
    return Ended(**(fields | changes))


async def publish(bus: Bus, events: Iterable[Ended], copy: str = "") -> None:
    """Store terminal events; `copy` makes the stream take the same event again."""

    async def one(event: Ended) -> None:
        subject = subjects.request(event.site, event.pool, event.outcome)
        await bus.publish_acked(subject, event, f"{event.event_id}{copy}")

    await asyncio.gather(*(one(event) for event in events))


@contextlib.asynccontextmanager
async def accountant(
    nats_server: NatsServer, dsn: str, **values: Any
) -> AsyncIterator[Service[AccountantSettings]]:
    """A whole accountant."""
    values = {"postgres_dsn": SecretStr(dsn), "site": SITE, **values}
    settings = nats_server.settings("goodput_accountant", AccountantSettings, **values)
    bus = await Bus.connect(settings, "goodput-accountant")
    service = Service("goodput-accountant", settings, bus)
    try:
        await start(service)
        await service.start_broker()
        yield service
    finally:
        await service.stop()
