"""Events that are not as they should be: each ends in a correct row, and the row is explained."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec
import pytest
from accountants import POOL, SITE, accountant, ended_request
from booking import until_booked
from click.testing import CliRunner, Result
from conftest import NatsServer

from console.main import cli
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.bus.codec import encode
from tokenfleet.contracts.requests import Ended, Objective

pytestmark = pytest.mark.integration

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS

ADDED_LATER = (
    *("schema", "objective", "degraded", "reused_tokens", "tokens_exact", "queue_wait_s", "predicted_ttft_s"),
    *("prefill_gpu_s", "decode_gpu_s", "retried_gpu_s", "retried_input_tokens", "time_scale"),
)
"""Of an event: what has a default, so that events from before it was there are still read."""


class Books:
    """The stream, as an ingress of any version writes it, and the ledger that an accountant makes of it."""

    def __init__(self, ingress: Bus, operator: Bus, dsn: str, command: Callable[..., Result]) -> None:
        self._ingress, self._operator, self._dsn, self._command = ingress, operator, dsn, command
        self._stored = 0

    async def store(self, *events: dict[str, Any], outcome: str = "completed") -> None:
        """Put events into the stream in this order, each whether it is there already or not, and have them booked."""
        for event in events:
            self._stored += 1
            subject = subjects.request(SITE, POOL, outcome)
            await self._ingress.publish_acked(subject, encode(event), f"{event['event_id']}-{self._stored}")
        await until_booked(self._operator)

    async def row(self, request_id: str) -> dict[str, Any]:
        """The one row of a request, which the audit can explain."""
        connection = await asyncpg.connect(self._dsn)
        try:
            [row] = await connection.fetch("SELECT * FROM ledger WHERE request_id = $1", request_id)
        finally:
            await connection.close()
        told = msgspec.json.decode((await self._run("audit", "trace", request_id, "--json")).stdout)
        [booked] = told["booked"]
        assert booked["as_rules_say"] is booked["follows"] is True
        assert booked["verdict"]
        return {**row, "verdict": booked["verdict"], "lines": told["lines"]}

    async def check(self) -> str:
        """The whole ledger is what the events make of it; what the audit says of them."""
        found = (await self._run("audit", "verify")).output
        assert "no difference" in found
        return found

    async def _run(self, *arguments: str) -> Result:
        result = await asyncio.to_thread(self._command, *arguments)
        assert result.exit_code == 0, result.output
        return result


@pytest.fixture
async def books(nats_server: NatsServer, postgres_dsn: str) -> AsyncIterator[Books]:
    environment = nats_server.environment("operator") | {"TOKENFLEET_POSTGRES_DSN": postgres_dsn}

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments, env=environment)

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(accountant(nats_server, postgres_dsn))
        ingress, operator = [
            await Bus.connect(nats_server.settings(user), user) for user in ("ingress", "operator")
        ]
        for bus in (ingress, operator):
            stack.push_async_callback(bus.drain)
        books = Books(ingress, operator, postgres_dsn, command)
        yield books
        await books.check()


def event(request_id: str, **changes: Any) -> dict[str, Any]:
    """As JSON holds it; nothing published before it: to the ledger the request is unknown."""
    full = {name: getattr(ended_request(request_id), name) for name in Ended.__struct_fields__}
    encoded = msgspec.json.decode(encode(Ended(**(full | changes))))
    return {"objective": {"ttft_s": 4.0, "tpot_s": 0.1}, **encoded}


async def test_an_end_of_a_request_that_nobody_heard_of_is_booked_with_all_that_it_says(books: Books):
    await books.store(event("unheard-of"))
    row = await books.row("unheard-of")
    assert (row["outcome"], row["met"], row["good_output_tokens"]) == ("completed", True, 10)
    assert [line["event"] for line in row["lines"]] == ["completed"]


async def test_an_event_an_hour_late_is_booked_to_when_its_request_was(books: Books):
    now_ns = time.time_ns()
    early = event("early", submitted_ns=now_ns - HOUR_NS - 10**9, time_ns=now_ns - HOUR_NS)
    await books.store(event("before-it"))
    await books.store(early)
    await books.store(event("after-it"))
    row = await books.row("early")
    assert row["submitted_at"] == datetime.fromtimestamp(early["submitted_ns"] // 1000 / 1e6, UTC)
    assert (row["met"], row["good_output_tokens"]) == (True, 10)


async def test_an_event_for_a_day_that_was_thought_over_goes_to_the_end_of_that_days_chain(books: Books):
    # Two days ago: the hour-late event above may be yesterday's.
    that_day_ns = time.time_ns() // DAY_NS * DAY_NS - DAY_NS - HOUR_NS

    def on_that_day(request_id: str, after_s: int) -> dict[str, Any]:
        submitted_ns = that_day_ns + after_s * 10**9
        return event(request_id, submitted_ns=submitted_ns, time_ns=submitted_ns + 10**9)

    await books.store(on_that_day("in-time", 60), event("today"))
    await books.store(on_that_day("too-late", 0))
    rows = [await books.row(request_id) for request_id in ("in-time", "too-late")]
    assert [row["sequence"] for row in rows] == [1, 2]
    assert rows[1]["submitted_at"] < rows[0]["submitted_at"]


async def test_events_the_wrong_way_round_and_again_and_again_are_one_row_each(books: Books):
    events = [event(f"turned-{number}", output_tokens=number + 1) for number in range(20)]
    await books.store(*reversed(events), *events, *events[5:9])
    rows = [await books.row(f"turned-{number}") for number in (0, 7, 19)]
    assert [row["output_tokens"] for row in rows] == [1, 8, 20]


async def test_an_event_from_before_fields_were_added_says_nothing_of_them(books: Books):
    old = {name: value for name, value in event("old").items() if name not in ADDED_LATER}
    await books.store(old)
    row = await books.row("old")
    assert row["event_schema"] == 1
    assert (row["met"], row["missed"], row["objective_ttft_s"]) == (None, [], None)  # no promise is known
    assert row["good_output_tokens"] == row["wasted_output_tokens"] == 0
    assert (row["reused_tokens"], row["computed_tokens"]) == (0, 1000)
    unknown = ("queue_wait_s", "prefill_gpu_s", "decode_gpu_s", "predicted_ttft_s")
    assert [row[name] for name in unknown] == [None] * len(unknown)


async def test_what_a_newer_ingress_adds_is_left_alone(books: Books):
    added = {"carbon_g": 12.5, "notes": {"by": ["a", "later", "version"]}, "schema": 7}
    await books.store({**event("new"), **added})
    row = await books.row("new")
    assert (row["event_schema"], row["met"], row["good_output_tokens"]) == (7, True, 10)


async def test_a_field_that_is_not_what_it_was_is_no_row_and_blocks_none(books: Books):
    before, odd, after = (event(name) for name in ("fine-before", "odd", "fine-after"))
    await books.store(before, {**odd, "output_tokens": "ten"}, after)
    for name in ("fine-before", "fine-after"):
        assert (await books.row(name))["met"] is True
    found = await books.check()
    assert "1 events cannot be booked" in found
    assert "Expected `int`, got `str` - at `$.output_tokens`" in found


async def test_a_request_refused_before_it_had_an_instance_or_a_class_has_a_row(books: Books):
    refused = ended_request(
        "refused", outcome="rejected", reason="admission_slack", status=429, instance=None, request_class=None,
        admitted=False, output_tokens=0, ttft_s=None, tpot_s=None, objective=Objective(ttft_s=1.0),
    )  # fmt: skip
    await books.store(msgspec.json.decode(encode(refused)), outcome="rejected")
    row = await books.row("refused")
    assert (row["met"], row["waste_cause"], row["computed_tokens"]) == (False, None, 0)
    assert (row["instance"], row["request_class"]) == (None, None)
