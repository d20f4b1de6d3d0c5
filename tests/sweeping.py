"""An accountant that takes in events, and sweepers of the test's own with a clock that runs ahead."""

import asyncio
import contextlib
import time
from typing import Any

import asyncpg
import msgspec
from accountants import POOL, SITE, ended_request
from booking import until_booked
from click.testing import CliRunner
from conftest import NatsServer

from console.main import cli
from goodput_accountant.dead_letters import DeadLetters
from goodput_accountant.ledger import Ledger
from goodput_accountant.main import DURABLE
from goodput_accountant.metrics import Metrics
from goodput_accountant.sweeper import Sweeper
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.clock import SystemClock
from tokenfleet.contracts.requests import (
    EVENT_TYPES,
    Ended,
    Event,
    Objective,
    RequestSpec,
    Submitted,
    event_id,
)

BOUND_S = 100.0
LATER_S = 10_000.0
"""How far the sweeper's clock is ahead: all that was submitted is due."""
PATIENCE_S = 40.0
PROMISE = Objective(ttft_s=4.0, tpot_s=0.1)


class AheadClock(SystemClock):
    """The machine's clock, ahead by some seconds."""

    ahead_s = LATER_S

    def unix_ns(self) -> int:
        return time.time_ns() + round(self.ahead_s * 1e9)


class World:
    """An accountant, an operator's connection, and a sweeper that sweeps when the test says so."""

    def __init__(
        self, nats_server: NatsServer, dsn: str, ledger: Ledger, service: Any, operator: Bus
    ) -> None:
        self.nats_server, self.dsn, self.ledger = nats_server, dsn, ledger
        self.service, self.operator = service, operator
        self.metrics = Metrics(service.observability.meter)
        self.clock = AheadClock()

    def sweeper(self, durable: str = DURABLE) -> Sweeper:
        bus = self.service.bus
        dead_letters = DeadLetters(bus, self.metrics, self.clock, SITE)
        return Sweeper(
            self.ledger, bus, dead_letters, self.metrics, self.clock, durable=durable, lost_after_s=BOUND_S
        )

    async def sweep(self) -> int:
        """Sweep, and wait until what that published is booked; how many requests were closed."""
        sweeper = self.sweeper()
        await sweeper.sweep()
        await self.until_booked()
        return sweeper.closed

    async def publish(self, *events: Event, copy: str = "") -> None:
        for event in events:
            kind = event.outcome if isinstance(event, Ended) else event.event_id.rpartition(".")[2]
            answer = "ingress-1" if kind in ("admitted", "routed", "queued", "refused") else None
            subject = subjects.request(event.site, event.pool, kind, answer)
            await self.operator.publish_acked(subject, event, f"{event.event_id}{copy}")

    async def until_booked(self) -> None:
        await until_booked(self.operator)

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()

    async def current(self, request_id: str) -> Any:
        """The one row that counts."""
        [row] = await self.fetch("SELECT * FROM ledger_current WHERE request_id = $1", request_id)
        return row

    async def open_requests(self) -> list[str]:
        return [row["request_id"] for row in await self.fetch("SELECT request_id FROM open_requests")]

    async def stored_ends(self, *request_ids: str) -> list[Ended]:
        """The terminal events that the stream holds of some requests."""
        found: list[Ended] = []
        reading = self.operator.read_stored(subjects.STREAM_REQUESTS, subjects.TERMINAL_SUBJECTS, 0)
        async for stored in reading:
            with contextlib.suppress(msgspec.MsgspecError):
                end = msgspec.json.decode(stored.data, type=Ended)
                if end.request_id in request_ids:
                    found.append(end)
        return found

    async def verify(self) -> None:
        """The ledger is what its events make of it."""
        environment = self.nats_server.environment("operator") | {"TOKENFLEET_POSTGRES_DSN": self.dsn}
        run = CliRunner().invoke
        result = await asyncio.to_thread(run, cli, ["audit", "verify"], env=environment)
        assert result.exit_code == 0, result.output


SPEC = RequestSpec(
    model="llama-70b",
    entry_site=SITE,
    ingress="ingress-1",
    input_tokens=1_000,
    max_output_tokens=10,
    block_size_tokens=16,
    stream=True,
)


def submitted(request_id: str, *, attempt: int = 1, time_ns: int | None = None, **spec: Any) -> Submitted:
    """Asked for just now, with 60 s to answer."""
    time_ns = time_ns or time.time_ns()
    values = {"deadline_ns": time_ns + 60 * 10**9, "client_request_id": f"mine-{request_id}"} | spec
    return Submitted(
        event_id=event_id(request_id, attempt, "submitted"),
        request_id=request_id,
        attempt=attempt,
        tenant="acme",
        pool="llama-70b",
        site=SITE,
        time_ns=time_ns,
        request=msgspec.structs.replace(SPEC, **values),
    )


def fact(after: Submitted, kind: str, **fields: Any) -> Event:
    """What followed in the same attempt."""
    return EVENT_TYPES[kind](
        event_id=event_id(after.request_id, after.attempt, kind),
        request_id=after.request_id,
        attempt=after.attempt,
        tenant=after.tenant,
        pool=POOL,
        site=SITE,
        time_ns=after.time_ns + 10**6,
        request_class="interactive",
        **fields,
    )


def course(asked: Submitted) -> list[Event]:
    """Of a request that was answered until its ingress died."""
    predicted = {"predicted_ttft_s": 0.5, "predicted_tpot_s": 0.05}
    return [
        asked,
        fact(asked, "admitted", request=asked.request, objective=PROMISE, reason="fits", queue_wait_s=0.1),
        fact(
            asked,
            "routed",
            instance="engine-1",
            generation=1,
            input_tokens=1_000,
            reused_tokens=400,
            reason="least_cost",
            **predicted,
        ),
        fact(asked, "first_token", instance="engine-1", ttft_s=0.7),
    ]


def outcome_of(asked: Submitted, **changes: Any) -> Ended:
    given = {"client_request_id": asked.request.client_request_id, "submitted_ns": asked.time_ns}
    return ended_request(asked.request_id, **(given | changes))
