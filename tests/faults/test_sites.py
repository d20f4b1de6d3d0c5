"""A fleet of three sites, an entry and two with engines: they take each other's requests, and losing one loses none."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from running_sites import Answer, RunningSites, start_sites
from running_stack import RunningStack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSites]:
    state_dir = tmp_path_factory.mktemp("sites") / "state"
    sites = start_sites(state_dir, "A=0,B=1,C=1", "--time-scale", "10", "--round-trip", "A-B=10ms")
    yield sites
    sites.whole.stop()


@pytest.fixture
def joined(fleet: RunningSites) -> Iterator[RunningSites]:
    """The fleet with every site and link working, before and after."""
    settle(fleet)
    fleet.asked.clear()
    yield fleet
    for site in fleet.sites:
        fleet.set_links(site, "joined")


def settle(fleet: RunningSites) -> None:
    for name, stack in fleet.sites.items():
        if name != "A":
            stack.wait_ready(1)
    until(lambda: all(hears(stack, fleet.sites.keys() - {name}) for name, stack in fleet.sites.items()), 60.0)


def hears(stack: RunningStack, others: set[str]) -> bool:
    """Whether a site's ingress hears all the others, with ready engines where they have some."""
    said = (stack.health() or {}).get("sites", {})
    return all(
        site in said and said[site]["silent_s"] < 3 and (said[site]["ready"] or site == "A")
        for site in others
    )


def count(answers: list[Answer], entry: str) -> Counter[tuple[int, str | None]]:
    """Status and site of the requests of one entry."""
    return Counter((a.status, a.site) for a in answers if a.client_id.startswith(entry))


async def test_an_entry_without_engines_is_served_by_the_others_and_every_request_is_accounted_once(
    joined: RunningSites,
):
    answers = await joined.ask_until("ABC", 0.05, lambda _: len(joined.asked) >= 30)
    by_entry = {entry: count(answers, entry) for entry in "ABC"}
    assert {site for _, site in by_entry["A"]} <= {"B", "C"}
    assert by_entry["B"].keys() == {(200, "B")}
    assert by_entry["C"].keys() == {(200, "C")}
    assert all(status == 200 for status, _ in by_entry["A"])
    await joined.all_accounted()
    assert joined.whole.command("audit", "verify").returncode == 0


async def test_requests_leave_a_site_whose_engines_are_drained_and_return_with_them(joined: RunningSites):
    folder = joined.sites["B"].state_dir / "engines" / "node-1"
    aside = joined.sites["B"].state_dir / "aside"
    aside.mkdir(exist_ok=True)
    loop = asyncio.get_running_loop()
    try:
        for file in folder.glob("*.json"):
            file.rename(aside / file.name)
        drained_s = loop.time()
        away = await joined.ask_until("B", 0.05, lambda answers: any(a.site == "C" for a in answers))
        assert loop.time() - drained_s < 5.0
        assert all(a.site in ("B", "C", None) for a in away)
    finally:
        for file in aside.glob("*.json"):
            file.rename(folder / file.name)
    await joined.ask_until("B", 0.1, lambda answers: any(a.site == "B" for a in answers))
    await joined.all_accounted()


async def test_a_site_cut_off_serves_its_own_and_rejoins_without_a_hand(joined: RunningSites):
    await joined.ask_until("ABC", 0.04, lambda _: len(joined.asked) > 20)
    joined.set_links("B", "cut")
    loop = asyncio.get_running_loop()
    cut_s = loop.time()
    cut = await joined.ask_until("BCA", 0.05, lambda _: loop.time() - cut_s > 6.0)
    assert count(cut, "B").keys() == {(200, "B")}
    assert count(cut, "C").keys() == {(200, "C")}
    joined.set_links("B", "joined")
    await asyncio.to_thread(settle, joined)
    after = await joined.ask_until("A", 0.05, lambda answers: any(a.site == "B" for a in answers))
    assert any(a.status == 200 for a in after)
    await joined.all_accounted()


async def test_a_site_may_die_whole_and_come_back(joined: RunningSites):
    def kill_all() -> None:
        for entry in joined.sites["B"].run["processes"]:
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(entry["pid"], signal.SIGKILL)

    asking = asyncio.create_task(joined.ask_until("AC", 0.05, lambda _: len(joined.asked) >= 120))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(kill_all)
    answers = await asking
    assert count(answers, "C").keys() == {(200, "C")}
    await asyncio.to_thread(settle, joined)
    await joined.ask_until("AB", 0.05, lambda answers: count(answers, "B")[200, "B"] > 2)
    await joined.all_accounted(90.0)


async def test_a_sites_nats_may_be_restarted_under_requests(joined: RunningSites):
    asking = asyncio.create_task(joined.ask_until("ABC", 0.05, lambda _: len(joined.asked) >= 100))
    await asyncio.sleep(0.5)
    joined.sites["B"].kill("nats")
    answers = await asking
    assert count(answers, "C").keys() == {(200, "C")}
    assert count(answers, "B")[200, "B"] > 0
    await asyncio.to_thread(settle, joined)
    await joined.all_accounted(90.0)
