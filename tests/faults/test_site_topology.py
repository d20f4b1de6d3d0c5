"""Sites joined by leaf nodes to their exchanges: what is said arrives once, and a cut loses and doubles nothing."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from linked_sites import LinkedSites, linked_sites

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.errors import UnavailableError

pytestmark = pytest.mark.timeout(120)

SITES = ("A", "B", "C")


class Note(msgspec.Struct, frozen=True):
    number: int


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[LinkedSites]:
    async with linked_sites(tmp_path) as started:
        yield started


@pytest.fixture
async def buses(sites: LinkedSites) -> AsyncIterator[dict[str, Bus]]:
    # The home last: what it sources is there then, and it does not have to try again.
    connected = {name: await sites.bus(name) for name in reversed(SITES)}
    await until(lambda: reach_each_other(connected))
    yield connected
    for bus in connected.values():
        await bus.drain()


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 45.0) -> float:
    """How long it took until the condition held, in seconds."""
    started_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.05)
    return time.monotonic() - started_s


async def reach_each_other(buses: dict[str, Bus]) -> bool:
    """Whether every site hears every other one."""
    heard: set[tuple[str, str]] = set()
    stops = []
    for name, bus in buses.items():

        async def hear(message: object, name: str = name) -> None:
            heard.add((name, getattr(message, "subject", "").split(".")[2]))

        stops.append(await bus.subscribe_raw("tf.v1.*.probe", hear))
    await asyncio.sleep(0.1)
    for name, bus in buses.items():
        await bus.publish(f"tf.v1.{name}.probe", b"")
    await asyncio.sleep(0.1)
    for stop in stops:
        await stop()
    return len(heard) == len(buses) ** 2


def completed(site: str, number: int) -> tuple[str, Note, str]:
    return subjects.request(site, "m@1", "completed"), Note(number), f"{site}-{number}"


async def stored(bus: Bus) -> Counter[str]:
    """How often each subject stands in a site's stream of requests."""
    return Counter(
        [each.subject async for each in bus.read_stored(subjects.STREAM_REQUESTS, [subjects.ALL_REQUESTS], 0)]
    )


async def test_whatever_a_site_says_arrives_once_at_every_site_that_listens(buses: dict[str, Bus]):
    heard: Counter[tuple[str, str, int]] = Counter()
    for name, bus in buses.items():

        async def hear(note: Note, delivery: Delivery, name: str = name) -> None:
            heard[name, delivery.subject, note.number] += 1

        await bus.subscribe("tf.v1.*.capacity.*", Note, hear)
    await asyncio.sleep(0.3)
    for number in range(20):
        for bus in buses.values():
            for site in SITES:
                await bus.publish(f"tf.v1.{site}.capacity.m", Note(number))
    await asyncio.sleep(1.0)
    # Three publishers said each of these: three arrivals at each of three listeners, not more.
    assert set(heard.values()) == {3}
    assert len(heard) == 3 * 3 * 20


async def test_an_event_is_stored_at_the_site_it_is_of_and_copied_home_once(buses: dict[str, Bus]):
    for number, at in enumerate(SITES):
        for site in SITES:
            subject, note, event_id = completed(site, number)
            assert not await buses[at].publish_acked(subject, note, event_id)
            assert await buses[at].publish_acked(subject, note, event_id)  # the second time it is known

    each = {subjects.request(site, "m@1", "completed"): 3 for site in SITES}

    async def all_home() -> bool:
        return await stored(buses["A"]) == each

    await until(all_home)
    for site in ("B", "C"):
        assert await stored(buses[site]) == {subjects.request(site, "m@1", "completed"): 3}


async def test_sites_keep_leases_and_registries_to_themselves(buses: dict[str, Bus]):
    for name in (subjects.BUCKET_LEASES, subjects.BUCKET_INSTANCES, subjects.BUCKET_LATENCY):
        buckets = {site: await bus.bucket(name) for site, bus in buses.items()}
        for site, bucket in buckets.items():
            assert await bucket.create("key", site.encode()) == 1
        await asyncio.sleep(0.2)
        for site, bucket in buckets.items():
            assert await bucket.items() == {"key": site.encode()}


async def test_tenants_changed_at_any_site_are_changed_at_every_site(buses: dict[str, Bus]):
    buckets = {site: await bus.bucket(subjects.BUCKET_TENANTS) for site, bus in buses.items()}
    live: dict[str, dict[str, bytes | None]] = {site: {} for site in SITES}
    for site, bucket in buckets.items():
        await bucket.watch(live[site].__setitem__)
    assert await buckets["C"].create("acme", b"1") == 1
    assert await buckets["C"].create("acme", b"2") is None

    def everywhere(value: bytes | None) -> Callable[[], Awaitable[bool]]:
        async def seen() -> bool:
            return all(live[site].get("acme") == value for site in SITES)

        return seen

    assert await until(everywhere(b"1")) < 5.0
    revision = await buckets["B"].get("acme")
    assert revision is not None
    assert await buckets["A"].update("acme", b"2", revision[1]) == 2
    assert await buckets["B"].update("acme", b"3", revision[1]) is None
    await until(everywhere(b"2"))
    await buckets["B"].delete("acme")
    await until(everywhere(None))
    assert await buckets["C"].create("acme", b"4") == 4
    await until(everywhere(b"4"))


@pytest.mark.parametrize("how", ["cut", "silent"])
async def test_a_site_cut_off_goes_on_by_itself_and_rejoins_by_itself(
    sites: LinkedSites, buses: dict[str, Bus], how: str
):
    at_b = await buses["B"].bucket(subjects.BUCKET_TENANTS)
    at_home = await buses["A"].bucket(subjects.BUCKET_TENANTS)
    await at_home.put("acme", b"before")

    async def copied() -> bool:
        return await at_b.items() == {"acme": b"before"}

    await until(copied)
    await buses["B"].publish_acked(*completed("B", 1))

    sites.set_links("B", how)  # pyright: ignore[reportArgumentType]
    await buses["B"].publish_acked(*completed("B", 2))
    assert await at_b.items() == {"acme": b"before"}
    assert await (await buses["B"].bucket(subjects.BUCKET_LEASES)).create("own", b"") is not None
    if how == "cut":  # over a silent link, what was given up on may still arrive
        with pytest.raises(UnavailableError):
            await at_b.put("acme", b"from B")
    with pytest.raises(UnavailableError):
        await buses["A"].publish_acked(*completed("B", 3), timeout_s=1.0)
    await buses["A"].publish_acked(*completed("C", 1))
    await at_home.put("acme", b"after")

    sites.set_links("B", "joined")
    subject, note, event_id = completed("B", 3)

    async def taken() -> bool:
        try:
            await buses["A"].publish_acked(subject, note, event_id, timeout_s=1.0)
        except UnavailableError:
            return False
        return True

    assert await until(taken) < 20.0
    everything = {subjects.request("B", "m@1", "completed"): 3, subjects.request("C", "m@1", "completed"): 1}

    async def complete() -> bool:
        return await stored(buses["A"]) == everything and await at_b.items() == {"acme": b"after"}

    await until(complete, 90.0)


async def test_a_site_added_later_is_sourced_once_the_operator_has_been_at_home(sites: LinkedSites):
    new, before = await sites.bus("C"), await sites.bus("A", sites=("A", "B"))
    await new.publish_acked(*completed("C", 1))
    assert await stored(before) == {}
    home = await sites.bus("A")

    async def sourced() -> bool:
        return (await stored(home)).total() == 1

    await until(sourced)
    for bus in (new, before, home):
        await bus.drain()


async def test_a_site_that_has_tenants_of_its_own_is_told_before_it_joins(sites: LinkedSites):
    alone = await sites.bus("B", sites=("B",))
    await (await alone.bucket(subjects.BUCKET_TENANTS)).put("acme", b"")
    joining = await sites.bus("B")
    with pytest.raises(UnavailableError, match="before the site joined"):
        await joining.bucket(subjects.BUCKET_TENANTS)
    for bus in (alone, joining):
        await bus.drain()
