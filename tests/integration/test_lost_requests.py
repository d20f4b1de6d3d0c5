"""Requests that nobody ended, closed through the stream by the accountant, against real servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from accountants import POOL, SITE, accountant, ended_request
from conftest import NatsServer
from nats.aio.msg import Msg
from sweeping import BOUND_S, LATER_S, PATIENCE_S, World, course, fact, outcome_of, submitted

from goodput_accountant.dead_letters_command import find
from goodput_accountant.ledger import Ledger
from goodput_accountant.policy.accounting import account
from goodput_accountant.windows import WindowPublisher
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.control import GoodputWindow
from tokenfleet.contracts.requests import lost_event_id

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parents[1] / "contract" / "golden"


@pytest.fixture
async def world(nats_server: NatsServer, postgres_dsn: str) -> AsyncIterator[World]:
    async with accountant(nats_server, postgres_dsn, goodput_window_s=3600.0) as service:
        ledger = await Ledger.open(postgres_dsn)
        operator = await Bus.connect(nats_server.settings("operator"), "operator")
        yield World(nats_server, postgres_dsn, ledger, service, operator)
        await operator.drain()
        await ledger.close()


async def test_a_request_that_nobody_ended_is_closed_with_what_its_events_say(world: World):
    asked = submitted("silent")
    await world.publish(*course(asked))
    assert await world.sweep() == 1
    row = await world.current("silent")
    assert (row["outcome"], row["reason"], row["revision"]) == ("lost", "no_outcome", 0)
    assert (row["pool"], row["request_class"], row["instance"]) == (POOL, "interactive", "engine-1")
    assert (row["client_request_id"], row["submitted_ns"]) == ("mine-silent", asked.time_ns)
    assert (row["ttft_s"], row["predicted_ttft_s"], row["predicted_tpot_s"]) == (0.7, 0.6, 0.05)
    assert (row["met"], row["waste_cause"], row["wasted_input_tokens"]) == (False, "lost", 600)
    assert await world.open_requests() == []
    assert await world.sweep() == 0
    await world.verify()


async def test_before_its_deadline_and_the_bound_nothing_is_decided(world: World):
    asked = submitted("young")
    await world.publish(asked)
    for ahead_s, closed, kept in ((BOUND_S - 10, 0, []), (BOUND_S + 50, 0, ["young"]), (BOUND_S + 62, 1, [])):
        world.clock.ahead_s = ahead_s
        assert await world.sweep() == closed
        assert await world.open_requests() == kept


async def test_a_class_that_gives_its_requests_longer_puts_the_decision_off(world: World):
    asked = submitted("patient")
    longer = fact(
        asked, "queued", reason="full", position=3, expected_start_s=9.0, valid_s=5.0, timeout_s=2 * LATER_S
    )
    await world.publish(asked, longer)
    assert await world.sweep() == 0
    assert await world.open_requests() == ["patient"]
    world.clock.ahead_s = 3 * LATER_S
    assert await world.sweep() == 1


async def test_ended_requests_are_left_alone_and_not_even_kept(world: World):
    asked = [submitted(f"over{number}") for number in range(50)]
    ends = [outcome_of(each) for each in asked]
    # Every other one's outcome is stored before its submission.
    for number, (one, end) in enumerate(zip(asked, ends, strict=True)):
        await world.publish(*((end, one) if number % 2 else (one, end)))
    await world.until_booked()
    assert await world.sweep() == 0
    assert await world.open_requests() == []
    await world.verify()


async def test_a_submission_that_is_there_twice_and_again_for_another_attempt_is_one_request(world: World):
    first = submitted("twice")
    again = submitted("twice", attempt=2, time_ns=first.time_ns)
    await world.publish(first, again)
    await world.publish(first, copy=".copy")
    assert await world.sweep() == 1
    # And once more when it is closed.
    await world.publish(first, copy=".later")
    assert await world.sweep() == 0
    row = await world.current("twice")
    assert (row["outcome"], row["attempt"]) == ("lost", 2)
    assert len(await world.stored_ends("twice")) == 1


async def test_an_outcome_of_a_request_that_was_never_submitted_stands_as_it_is(world: World):
    await world.publish(outcome_of(submitted("unheard")))
    assert await world.sweep() == 0
    assert (await world.current("unheard"))["outcome"] == "completed"
    await world.verify()


async def test_a_submission_of_the_first_schema_is_closed_too(world: World):
    data = (GOLDEN / "submitted.v1.json").read_bytes()
    old = msgspec.json.decode(data)
    subject = subjects.request(SITE, "llama-70b", "submitted")
    await world.operator.publish_acked(subject, data, "old.submitted")
    assert await world.sweep() == 1
    row = await world.current(old["request_id"])
    assert (row["outcome"], row["input_tokens"], row["client_request_id"]) == ("lost", 2048, "run-1")
    await world.verify()


async def test_a_submission_that_says_nothing_is_a_dead_letter_and_blocks_nothing(world: World):
    subject = subjects.request(SITE, "llama-70b", "submitted")
    await world.operator.publish_acked(subject, b'{"request_id": "tor', "torn.submitted")
    impossible = submitted("impossible", input_tokens=-1)
    await world.publish(impossible, submitted("behind"))
    assert await world.sweep() == 1
    assert (await world.current("behind"))["outcome"] == "lost"
    assert await world.sweep() == 0
    letters = [each for each in (await find(world.operator, 0, 50)).letters if each.subject == subject]
    assert [letter.reason for letter in letters] == ["not_credible", "malformed"]
    assert "input_tokens of request impossible is not credible: -1" in letters[0].detail


async def test_an_outcome_that_cannot_be_booked_is_named_as_the_reason(world: World):
    asked = submitted("garbled")
    await world.publish(asked, outcome_of(asked, output_tokens=-5))
    await world.until_booked()
    assert await world.sweep() == 1
    row = await world.current("garbled")
    assert (row["outcome"], row["reason"]) == ("lost", "outcome_refused")
    await world.verify()


async def test_what_the_ledger_has_yet_to_take_in_is_not_lost(world: World):
    """A backlog of outcomes after an outage must not look like silence."""
    asked = submitted("late")
    await world.publish(asked, outcome_of(asked))
    held = asyncio.Event()

    async def hold(batch: Any) -> None:
        await held.wait()

    behind = asyncio.create_task(
        world.operator.consume(subjects.STREAM_REQUESTS, "behind", subjects.TERMINAL_SUBJECTS, hold)
    )
    await asyncio.sleep(0.5)
    sweeper = world.sweeper(durable="behind")
    cursor = "SELECT sequence FROM submissions_cursor"
    before = await world.fetch(cursor)
    await sweeper.sweep()
    assert await world.fetch(cursor) == before
    held.set()
    behind.cancel()
    await asyncio.gather(behind, return_exceptions=True)
    assert sweeper.closed == 0
    assert len(await world.stored_ends("late")) == 1


async def test_a_row_that_a_restored_database_lacks_is_booked_after_all(world: World):
    asked = submitted("restored")
    tables = ("ledger", "ledger_days")
    for table in tables:
        await world.fetch(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")
    await world.publish(asked, outcome_of(asked))
    await world.until_booked()
    for table in tables:
        await world.fetch(f"DELETE FROM {table}")
        await world.fetch(f"INSERT INTO {table} SELECT * FROM kept_{table}")
        await world.fetch(f"DROP TABLE kept_{table}")
    assert await world.fetch("SELECT 1 FROM ledger WHERE request_id = 'restored'") == []
    assert await world.sweep() == 0
    assert (await world.current("restored"))["outcome"] == "completed"
    assert await world.open_requests() == []
    await world.verify()


async def test_accountants_that_sweep_at_once_share_the_work_and_say_each_end_once(world: World):
    ids = [f"shared{number}" for number in range(120)]
    await world.publish(*(submitted(request_id) for request_id in ids))
    sweepers = [world.sweeper() for _ in range(3)]
    for _ in range(3):
        await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))
    await world.until_booked()
    assert sum(sweeper.closed for sweeper in sweepers) == len(ids)
    assert sorted(end.request_id for end in await world.stored_ends(*ids)) == sorted(ids)
    assert await world.open_requests() == []
    await world.verify()


async def test_an_accountant_killed_after_it_published_an_end_says_the_same_again(world: World):
    await world.publish(submitted("killed"))
    statement = "INSERT INTO open_requests SELECT request_id, submitted_ns, 0, 'x', $1 FROM ledger WHERE request_id = 'killed'"
    assert await world.sweep() == 1
    [said] = await world.stored_ends("killed")
    # What its transaction would have left, had it not committed.
    await world.fetch(statement, msgspec.json.encode(said))
    assert await world.sweep() == 0
    assert await world.open_requests() == []
    assert await world.stored_ends("killed") == [said]
    await world.verify()


async def test_postgres_refusing_one_request_leaves_it_a_dead_letter_and_the_others_their_ends(world: World):
    await world.publish(submitted("nul", client_request_id="a\0b"), submitted("beside"))
    assert await world.sweep() == 1
    assert (await world.current("beside"))["outcome"] == "lost"
    letters = (await find(world.operator, 0, 50)).letters
    assert "request nul holds a NUL" in letters[0].detail


async def test_a_true_outcome_after_all_replaces_lost_and_what_was_said_in_a_window_is_not_said_twice(
    world: World,
):
    """Windows are feedback on what ended then: one says lost, none says it again."""
    windows: list[GoodputWindow] = []

    async def on_window(message: Msg) -> None:
        windows.append(GoodputWindow.model_validate_json(message.data))

    await world.operator.subscribe_raw(subjects.goodput(SITE, "windows@1"), on_window)
    publisher = WindowPublisher(
        world.ledger, await world.service.broker(), world.metrics, world.clock, SITE, 10.0
    )
    asked = msgspec.structs.replace(submitted("revised"), pool="windows@1")
    facts = [msgspec.structs.replace(each, pool="windows@1") for each in course(asked)]
    window_ns = 10 * 10**9
    start_ns = world.clock.unix_ns() // window_ns * window_ns
    world.clock.ahead_s += (start_ns + window_ns - world.clock.unix_ns()) / 1e9 + 0.5
    await publisher.publish()  # the cursor

    await world.publish(*facts)
    assert await world.sweep() == 1
    assert (await world.current("revised"))["outcome"] == "lost"
    world.clock.ahead_s += 12
    await publisher.publish()
    await until(lambda: len(windows) == 1)
    said = windows[0]
    assert (said.offered, said.completed, said.met, said.good_tokens) == (1, 0, 0, 0)
    assert (said.request_class, said.output_tokens) == ("interactive", 0)

    # Its ingress comes back: it had been answered, and says so now.
    truth = outcome_of(asked, pool="windows@1", time_ns=world.clock.unix_ns())
    await world.publish(truth)
    await world.until_booked()
    row = await world.current("revised")
    assert (row["outcome"], row["revision"], row["met"], row["good_output_tokens"]) == (
        "completed",
        1,
        True,
        10,
    )
    both = await world.fetch("SELECT revision FROM ledger WHERE request_id = 'revised' ORDER BY revision")
    assert [each["revision"] for each in both] == [0, 1]
    world.clock.ahead_s += 12
    other = ended_request("other", pool="windows@1", time_ns=truth.time_ns)
    await world.publish(other)
    await world.until_booked()
    await publisher.publish()
    await until(lambda: len(windows) == 2)
    assert (windows[1].offered, windows[1].met) == (1, 1)
    await world.verify()


async def test_an_accountant_sweeps_by_itself(nats_server: NatsServer, postgres_dsn: str, world: World):
    async with accountant(nats_server, postgres_dsn, lost_after_s=1.0) as service:
        now_ns = time.time_ns()
        await world.publish(submitted("alone", deadline_ns=now_ns + 10**9))
        await until(lambda: service.health()["closed_as_lost"] == 1)
        await world.until_booked()
    row = await world.current("alone")
    assert row["outcome"] == "lost"
    assert 2.0 <= row["e2e_s"] < PATIENCE_S


async def test_the_rules_make_the_same_row_of_what_was_published(world: World):
    await world.publish(*course(submitted("rebuilt")))
    assert await world.sweep() == 1
    [end] = await world.stored_ends("rebuilt")
    assert end.event_id == lost_event_id("rebuilt")
    row = await world.current("rebuilt")
    rebuilt = msgspec.structs.asdict(account(end))
    assert {name: row[name] for name in rebuilt if name != "missed"} == {
        name: value for name, value in rebuilt.items() if name != "missed"
    }


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)
