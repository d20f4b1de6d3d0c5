"""What may not leave its region never leaves it: live, whatever is killed, cut off or rolled out meanwhile.

The entry A lies in eu with B; C lies in us, with twice the engines. Faults that cannot be made on one machine, a clock that is off and a
view that is stale, are in tests/unit/fleetmind/test_eligibility.py.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import asyncpg
import httpx2 as httpx
import pytest
from running_sites import Answer, RunningSites, start_sites
from running_stack import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

EVERY_S = 0.05


class Bound:
    """A tenant whose requests may run in eu only, asking beside one that is not bound."""

    def __init__(self, fleet: RunningSites, api_key: str) -> None:
        self.fleet = fleet
        self._key = api_key
        self.bound: list[Answer] = []
        self.free: list[Answer] = []

    async def while_(self, doing: Callable[[], Awaitable[None]]) -> None:
        """Both ask at A until something is done, and every request is answered."""
        tasks: list[asyncio.Task[None]] = []

        async def one(client: httpx.AsyncClient, number: int) -> None:
            if number % 2:
                self.bound.append(await self.fleet.ask(client, "A", api_key=self._key))
            else:
                self.free.append(await self.fleet.ask(client, "A"))

        under_way = asyncio.ensure_future(doing())
        async with httpx.AsyncClient() as client:
            while not under_way.done():
                tasks.append(asyncio.create_task(one(client, len(tasks))))
                await asyncio.sleep(EVERY_S)
            await asyncio.gather(under_way, *tasks)

    async def sites_in_the_ledger(self) -> Counter[tuple[str, str]]:
        """Where the ledger says that the tenant's requests were, and what became of them."""
        connection = await asyncpg.connect(self.fleet.whole.run["postgres_dsn"])
        try:
            rows = await connection.fetch(
                "SELECT site, outcome FROM ledger_current WHERE tenant = 'bound' AND instance IS NOT NULL"
            )
        finally:
            await connection.close()
        return Counter((row["site"], row["outcome"]) for row in rows)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSites]:
    state_dir = tmp_path_factory.mktemp("residency") / "state"
    sites = start_sites(
        state_dir,
        "A=0,B=1,C=2",
        *("--regions", "A=eu,B=eu,C=us", "--time-scale", "10", "--model", "llama-70b@1"),
    )
    yield sites
    sites.whole.stop()


async def test_no_fault_lets_a_bound_request_out_of_its_region(fleet: RunningSites):
    command = fleet.whole.command
    made = command("tenant", "create", "bound", "--region", "eu")
    assert made.returncode == 0, made.stderr
    bound = Bound(fleet, made.stdout.strip())
    await asyncio.sleep(6.0)

    async def quiet() -> None:
        await asyncio.sleep(3.0)

    async def entry_restarts() -> None:
        for service in ("fleetmind", "ingress"):
            pid = await asyncio.to_thread(fleet.sites["A"].kill, service)
            await asyncio.to_thread(fleet.sites["A"].wait_restarted, service, pid)
        await asyncio.to_thread(until, lambda: fleet.sites["A"].health() is not None)
        await asyncio.sleep(2.0)

    async def partition() -> None:
        await asyncio.to_thread(fleet.set_links, "A-B", "cut")
        await asyncio.sleep(12.0)

    async def rejoined() -> None:
        await asyncio.to_thread(fleet.set_links, "A-B", "joined")
        await asyncio.sleep(8.0)

    async def version_rolls_out() -> None:
        """All weight to a version that nobody has, then to one that is there again."""
        for weights in (("1=0.5", "2=0.5"), ("1=0", "2=1"), ("1=1", "2=0")):
            done = await asyncio.to_thread(command, "rollout", "set", "llama-70b", *weights)
            assert done.returncode == 0, done.stderr
            await asyncio.sleep(1.5)

    for fault in (quiet, entry_restarts, partition, rejoined, version_rolls_out, quiet):
        before = len(bound.bound), len(bound.free)
        await bound.while_(fault)
        answers = bound.bound[before[0] :], bound.free[before[1] :]
        counts = [Counter((a.status, a.site, a.reason) for a in each) for each in answers]
        print(f"\n{fault.__name__}: bound {dict(counts[0])}\n  free {dict(counts[1])}")

    assert {answer.site for answer in bound.bound} <= {"B", None}
    # An entry without engines knows again what others have before it takes requests.
    assert not any(answer.reason == "model_not_found" for answer in bound.bound + bound.free)
    assert {"C"} <= {answer.site for answer in bound.free}
    assert bound.bound[-1].status == 200
    # An ingress that was away has accepted nothing.
    fleet.asked[:] = [answer for answer in fleet.asked if answer.status]
    await fleet.all_accounted()
    ledger = await bound.sites_in_the_ledger()
    assert {site for site, _ in ledger} == {"B"}, ledger
