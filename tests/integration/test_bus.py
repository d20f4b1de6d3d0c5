"""The bus on a real NATS server."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from conftest import NatsServer
from fleets import record

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery, Fetched
from tokenfleet.clock import SystemClock
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.contracts.policy import Policy
from tokenfleet.errors import RemoteError, TokenFleetError, UnavailableError
from tokenfleet.fleet_view import FleetView
from tokenfleet.lease import RENEW_S, Leases
from tokenfleet.live import LivePolicy, watch_fleet
from tokenfleet.settings import Settings

pytestmark = pytest.mark.integration


class Note(msgspec.Struct, frozen=True):
    number: int


@pytest.fixture
async def bus(nats_server) -> AsyncIterator[Bus]:
    connection = await Bus.connect(nats_server.settings("operator"), "test")
    yield connection
    await connection.drain()


async def until(condition, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_does_not_decode_is_dropped_and_counted_and_blocks_nothing(bus: Bus):
    got: list[int] = []

    async def handler(note: Note, _: Delivery) -> None:
        got.append(note.number)

    await bus.subscribe("tf.v1.test.a", Note, handler, ordered=True)
    await bus.publish("tf.v1.test.a", b"{broken")
    await bus.publish("tf.v1.test.a", b'{"number":"one"}')
    await bus.publish("tf.v1.test.a", Note(1))
    await until(lambda: got == [1])
    assert bus.contract_errors == 2


async def test_a_slow_handler_does_not_hold_up_the_others(bus: Bus):
    done = 0

    async def handler(note: Note, _: Delivery) -> None:
        nonlocal done
        await asyncio.sleep(0.2)
        done += 1

    await bus.subscribe("tf.v1.test.b", Note, handler)
    for number in range(20):
        await bus.publish("tf.v1.test.b", Note(number))
    await until(lambda: done == 20, timeout_s=1.5)


async def test_a_failing_handler_ends_neither_its_subscription_nor_the_order(bus: Bus):
    got: list[int] = []

    async def handler(note: Note, _: Delivery) -> None:
        if note.number == 1:
            raise RuntimeError("no")
        got.append(note.number)

    await bus.subscribe("tf.v1.test.c", Note, handler, ordered=True)
    for number in range(4):
        await bus.publish("tf.v1.test.c", Note(number))
    await until(lambda: got == [0, 2, 3])


async def test_a_requester_always_hears_back(bus: Bus):
    async def answer(note: Note) -> Note:
        if note.number == 0:
            raise UnavailableError("Postgres is away")
        if note.number < 0:
            raise RuntimeError("secret detail")
        return Note(note.number + 1)

    await bus.serve("tf.v1.test.ask", Note, answer)
    assert await bus.request("tf.v1.test.ask", Note(1), Note) == Note(2)
    with pytest.raises(RemoteError, match="Postgres is away"):
        await bus.request("tf.v1.test.ask", Note(0), Note)
    with pytest.raises(RemoteError) as unexpected:
        await bus.request("tf.v1.test.ask", Note(-1), Note)
    assert "secret" not in str(unexpected.value)
    with pytest.raises(RemoteError, match="not a valid Note"):
        await bus.request("tf.v1.test.ask", {"number": "x"}, Note)
    with pytest.raises(UnavailableError, match="nobody answers"):
        await bus.request("tf.v1.test.nobody", Note(1), Note)


async def test_an_event_published_twice_is_stored_once(bus: Bus):
    subject = subjects.request("local", "pool", "completed")
    assert not await bus.publish_acked(subject, Note(1), "event-1")
    assert await bus.publish_acked(subject, Note(1), "event-1")


async def test_a_publish_that_no_stream_takes_is_an_error(bus: Bus):
    with pytest.raises(UnavailableError):
        await bus.publish_acked("tf.v1.test.unstored", Note(1), "event-2", timeout_s=1.0)


async def test_a_batch_whose_handler_fails_is_delivered_again_and_nothing_is_skipped(bus: Bus):
    subject = subjects.request("local", "pool2", "completed")
    for number in range(50):
        await bus.publish_acked(subject, Note(number), f"batch-{number}")
    seen: list[int] = []
    failures = 0

    async def handler(batch: Sequence[Fetched]) -> None:
        nonlocal failures
        if failures == 0:
            failures += 1
            raise RuntimeError("before commit")
        seen.extend(msgspec.json.decode(message.data)["number"] for message in batch)

    filters = [subjects.request("local", "pool2", "completed")]
    bus.spawn(bus.consume(subjects.STREAM_REQUESTS, "test-batches", filters, handler, batch=20))
    await until(lambda: len(set(seen)) == 50)
    assert failures == 1


async def test_as_many_batches_are_handled_at_once_as_was_asked_for(bus: Bus):
    subject = subjects.request("local", "pool4", "completed")
    for number in range(50):
        await bus.publish_acked(subject, Note(number), f"at-once-{number}")
    seen: list[int] = []
    at_once, most = 0, 0

    async def handler(batch: Sequence[Fetched]) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.05)
        at_once -= 1
        seen.extend(msgspec.json.decode(message.data)["number"] for message in batch)

    bus.spawn(
        bus.consume(subjects.STREAM_REQUESTS, "test-at-once", [subject], handler, batch=5, concurrency=2)
    )
    await until(lambda: len(seen) >= 50)
    assert sorted(seen) == list(range(50))
    assert most == 2


async def test_two_consumers_of_one_durable_share_the_work(bus: Bus, nats_server):
    other = await Bus.connect(nats_server.settings("operator"), "other")
    subject = subjects.request("local", "pool3", "completed")
    seen: dict[str, list[int]] = {"one": [], "two": []}

    def collect(name: str):
        async def handler(batch: Sequence[Fetched]) -> None:
            seen[name].extend(msgspec.json.decode(message.data)["number"] for message in batch)
            await asyncio.sleep(0.01)

        return handler

    for name, connection in (("one", bus), ("two", other)):
        connection.spawn(
            connection.consume(subjects.STREAM_REQUESTS, "shared", [subject], collect(name), batch=5)
        )
    for number in range(100):
        await bus.publish_acked(subject, Note(number), f"shared-{number}")
    await until(lambda: len(seen["one"]) + len(seen["two"]) >= 100)
    assert sorted(seen["one"] + seen["two"]) == list(range(100))
    assert seen["one"] and seen["two"]
    await other.drain()


async def test_a_bucket_is_listed_whole_however_late_its_messages_arrive(bus: Bus):
    bucket = await bus.bucket(subjects.BUCKET_TENANTS)
    assert await bucket.items() == {}
    await bucket.put("a", b"1")
    await bucket.put("b", b"2")
    await bucket.put("gone", b"3")
    await bucket.delete("gone")

    async def list_and_stall() -> dict[str, bytes]:
        # A loop that hardly runs: replies and messages arrive together, in one read.
        listing = asyncio.ensure_future(bucket.items())
        while not listing.done():
            time.sleep(0.005)
            await asyncio.sleep(0)
        return listing.result()

    for _ in range(20):
        assert await list_and_stall() == {"a": b"1", "b": b"2"}
    for key in ("a", "b"):
        await bucket.delete(key)


async def test_what_changes_while_a_bucket_is_listed_is_not_undone_by_the_listing(bus: Bus, nats_server):
    bucket = await bus.bucket(subjects.BUCKET_TENANTS)
    await bucket.put("old", b"0")
    listed = bucket.items

    async def then_change() -> dict[str, bytes]:
        items = await listed()
        await bucket.put("old", b"1")
        await bucket.put("new", b"1")
        await bus.flush()
        await until(lambda: seen.get("new") == b"1")
        return items

    bucket.items = then_change  # the listing ends after the changes are known
    seen: dict[str, bytes | None] = {}
    await bucket.watch(seen.__setitem__)
    assert seen == {"old": b"1", "new": b"1"}
    for key in list(seen):
        await bucket.delete(key)


async def test_a_watcher_sees_what_is_there_and_what_changes(bus: Bus):
    bucket = await bus.bucket(subjects.BUCKET_TENANTS)
    await bucket.put("before", b"1")
    seen: dict[str, bytes | None] = {}
    await bucket.watch(seen.__setitem__)
    assert seen == {"before": b"1"}
    await bucket.put("after", b"2")
    await bucket.delete("before")
    await until(lambda: seen == {"before": None, "after": b"2"})


async def test_a_policy_that_does_not_validate_leaves_the_last_good_one_in_force(bus: Bus):
    live = LivePolicy()
    await live.watch(bus)
    bucket = await bus.bucket(subjects.BUCKET_POLICY)
    await bucket.put(subjects.POLICY_KEY, msgspec.json.encode(Policy(wait_share_of_slack=0.2)))
    await until(lambda: live.current.wait_share_of_slack == 0.2)
    await bucket.put(subjects.POLICY_KEY, b'{"wait_share_of_slack": 7}')
    await asyncio.sleep(0.1)
    assert live.current.wait_share_of_slack == 0.2


async def test_one_replica_holds_a_lease_and_the_other_takes_over_within_two_seconds(bus: Bus):
    clock = SystemClock()
    one, two = (Leases(bus, clock, "test", "local", holder) for holder in ("one", "two"))

    async def keep(*leases: Leases) -> None:
        await asyncio.gather(*(lease.keep(["pool"]) for lease in leases))
        await asyncio.sleep(RENEW_S)

    for _ in range(4):
        await keep(one, two)
        assert one.holds("pool") != two.holds("pool")
    holder, standby = (one, two) if one.holds("pool") else (two, one)
    started = clock.wall_s()
    while not standby.holds("pool"):  # the holder has died: only the standby goes on
        await keep(standby)
        assert not (holder.holds("pool") and standby.holds("pool")), "two writers"
    assert clock.wall_s() - started < 2.5
    await keep(holder, standby)
    assert not holder.holds("pool"), "the old holder finds that it lost"


async def test_a_renewal_that_was_stored_although_its_answer_was_lost_does_not_cost_the_lease(bus: Bus):
    clock = SystemClock()
    lease = Leases(bus, clock, "unanswered", "local", "one")
    await lease.keep(["pool"])
    bucket = await bus.bucket(subjects.BUCKET_LEASES)
    key = subjects.lease_key("unanswered", "local", "pool")
    stored = await bucket.get(key)
    assert stored is not None
    await bucket.put(key, stored[0])  # the same holder's entry, at a revision that it was never told
    await lease.keep(["pool"])
    assert lease.holds("pool")
    await bucket.put(key, b'{"holder":"two","count":1}')
    await lease.keep(["pool"])
    assert not lease.holds("pool"), "another's entry is respected"


async def test_a_released_lease_is_taken_at_once(bus: Bus):
    clock = SystemClock()
    one, two = (Leases(bus, clock, "release", "local", holder) for holder in ("one", "two"))
    await one.keep(["pool"])
    assert one.holds("pool")
    await one.release()
    await one.keep(["pool"])  # the periodic renewal of a process that is stopping
    await two.keep(["pool"])
    assert two.holds("pool")


async def test_a_server_that_is_not_there_is_named_with_what_to_do():
    settings = Settings(nats_url="nats://127.0.0.1:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenfleet.bus.connection.CONNECT_ATTEMPTS", 2)
        with pytest.raises(TokenFleetError, match="TOKENFLEET_NATS_URL"):
            await Bus.connect(settings, "lonely")


async def test_the_password_in_an_address_is_not_repeated_in_the_error():
    with pytest.raises(UnavailableError) as caught:
        await Bus.connect(Settings(nats_url="nats://acme:hunter2@127.0.0.1:no-port"), "lonely")
    assert "nats://127.0.0.1:no-port" in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_stopping_process_still_answers_what_it_was_handling(bus: Bus, nats_server: NatsServer):
    server = await Bus.connect(nats_server.settings("operator"), "server")

    async def slow(note: Note) -> Note:
        await asyncio.sleep(0.3)
        return note

    await server.serve("tf.v1.test.slow", Note, slow)
    asked = [asyncio.create_task(bus.request("tf.v1.test.slow", Note(number), Note)) for number in range(4)]
    await asyncio.sleep(0.1)
    await server.drain()
    assert await asyncio.gather(*asked) == [Note(number) for number in range(4)]


async def test_a_restarted_engine_is_gone_before_it_is_back(bus: Bus):
    bucket = await bus.bucket(subjects.BUCKET_INSTANCES)
    seen: list[int | None] = []
    view = FleetView()

    def changed(name: str, entry: InstanceRecord | None) -> None:
        assert name == "a"
        seen.append(entry.generation if entry else None)

    await watch_fleet(bus, "local", SystemClock(), view, on_record=changed)
    for generation in (1, 1, 2):  # registered, refreshed, restarted
        entry = record("a", generation=generation, draining=generation == 2)
        await bucket.put(subjects.instance_key("local", "a"), msgspec.json.encode(entry))
    await until(lambda: len(seen) == 4)
    assert seen == [1, 1, None, 2]
