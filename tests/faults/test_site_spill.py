"""A local overload leaves its site within two seconds, and its requests stay at home again within thirty of its end."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import httpx2 as httpx
import pytest
from running_sites import RunningSites, start_sites

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.contracts.requests import Placed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

TIME_SCALE = 4
PROMPT = "overload " * 7_000
"""About 16,000 tokens, whose prefill takes a reference engine 1.4 engine seconds."""
OVERLOAD_PER_S = 10.0
"""Three times what one engine computes."""
OVERLOAD_S = 6.0
QUIET_S = 8.0
"""Before the overload: a site that has just started grants nothing for four seconds."""
SPILLS_WITHIN_S = 2.0
RETURNS_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSites]:
    state_dir = tmp_path_factory.mktemp("spill") / "state"
    sites = start_sites(state_dir, "A=0,B=1,C=1", "--time-scale", str(TIME_SCALE))
    yield sites
    sites.whole.stop()


class Placements:
    """Where the requests that entered at one site were placed, when and why."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self.seen: list[tuple[float, str, str]] = []

    async def hear(self, event: Placed, _: Delivery) -> None:
        if event.request.entry_site == self._entry:
            self.seen.append((time.monotonic(), event.site, event.reason))

    def away(self, since_s: float) -> list[float]:
        """When, counted from `since_s`, requests were placed at another site."""
        return [at_s - since_s for at_s, site, _ in self.seen if at_s >= since_s and site != self._entry]

    def reasons(self, since_s: float) -> Counter[tuple[str, str]]:
        return Counter((site, reason) for at_s, site, reason in self.seen if at_s >= since_s)


async def test_an_overload_at_b_spills_to_c_and_returns(fleet: RunningSites):
    bus = await Bus.connect(fleet.sites["B"].settings(), "test")
    placements = Placements("B")
    await bus.subscribe(f"{subjects.PREFIX}.*.request.*.placed", Placed, placements.hear, ordered=True)
    # For a second after the start B's FleetMind may know C's instance and not yet its own: C is right until then.
    await fleet.ask_until("B", 0.25, lambda answers: any(answer.site == "B" for answer in answers))
    settled_s = time.monotonic()
    await fleet.ask_until("B", 0.25, lambda _: time.monotonic() - settled_s > QUIET_S)
    assert placements.seen
    assert placements.away(settled_s) == [], placements.reasons(settled_s)

    began_s = time.monotonic()
    async with httpx.AsyncClient() as client:
        asking: list[asyncio.Task[object]] = []
        while time.monotonic() - began_s < OVERLOAD_S:
            prompt = f"{len(asking)} {PROMPT}"
            asking.append(asyncio.create_task(fleet.ask(client, "B", prompt)))
            await asyncio.sleep(1 / OVERLOAD_PER_S)
        ended_s = time.monotonic()
        quiet = fleet.ask_until(
            "B", 0.25, lambda _: time.monotonic() - ended_s > RETURNS_WITHIN_S + 2, RETURNS_WITHIN_S + 30
        )
        await asyncio.gather(quiet, *asking)
    spilled_s, returned_s = placements.away(began_s), placements.away(ended_s)
    print(f"\nspilled after {spilled_s[:1]} s, the last {returned_s[-1:]} s after the end")
    print(dict(placements.reasons(began_s)))
    assert spilled_s and spilled_s[0] < SPILLS_WITHIN_S
    assert placements.away(ended_s + RETURNS_WITHIN_S) == [], placements.reasons(ended_s + RETURNS_WITHIN_S)
    await fleet.all_accounted()
    await bus.drain()
