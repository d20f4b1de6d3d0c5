"""What KEDA is told."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from fleetmind.plan_page import OLD_AFTER_S, PlanPage
from tokenfleet.contracts.control import Plan, PoolPlanned


def plan(*, dry_run: bool, covers: tuple[str, ...] = ("A", "B")) -> Plan:
    def pool(site: str, wanted: int) -> PoolPlanned:
        return PoolPlanned(
            site=site,
            pool="m@1",
            model="m",
            ready=2,
            warming=1,
            wanted=wanted,
            prewarm=0,
            work=1.0,
            bears=2.0,
            reason=f"{wanted} at {site}",
        )

    return Plan(
        time_ns=1,
        site="A",
        covers=list(covers),
        dry_run=dry_run,
        pools=[pool("A", 9), pool("B", 5)],
        forecasts=[],
        unserved=[],
    )


class Page:
    """Of site B, at a time of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.page = PlanPage("B", lambda: self.now_s, lambda: "nobody asked.")

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        app = web.Application()
        self.page.add_to(app)
        async with TestClient(TestServer(app)) as client:
            response = await client.get(path)
            return response.status, await response.json()


async def test_a_plan_in_force_tells_what_this_sites_pool_should_have():
    page = Page()
    page.page.heard(plan(dry_run=False))
    assert await page.get("/v1/plan/m@1") == (
        200,
        {"pool": "m@1", "site": "B", "replicas": 5, "current": 3, "dry_run": False, "reason": "5 at B"},
    )


async def test_in_a_dry_run_what_runs_is_what_should_run():
    page = Page()
    page.page.heard(plan(dry_run=True))
    status, body = await page.get("/v1/plan/m@1")
    assert (status, body["replicas"], body["current"], body["dry_run"]) == (200, 3, 3, True)


async def test_the_whole_plan_can_be_read_as_it_was_told():
    page, told = Page(), plan(dry_run=True)
    page.page.heard(told)
    status, body = await page.get("/v1/plan")
    assert (status, Plan.model_validate(body)) == (200, told)


@pytest.mark.parametrize("path", ["/v1/plan", "/v1/plan/m@1"])
async def test_without_a_plan_or_with_an_old_one_the_answer_is_503_with_the_reason(path: str):
    page = Page()
    status, body = await page.get(path)
    assert (status, body) == (503, {"error": "There is no plan for site B yet: nobody asked."})
    page.page.heard(plan(dry_run=True, covers=("A",)))
    assert (await page.get(path))[0] == 503
    page.page.heard(plan(dry_run=True))
    assert (await page.get(path))[0] == 200
    page.now_s += OLD_AFTER_S + 1.0
    status, body = await page.get(path)
    assert status == 503
    assert "by site A, is 181 s old" in body["error"]


async def test_a_pool_that_the_plan_does_not_have_here_is_not_found_and_the_others_are_named():
    page = Page()
    page.page.heard(plan(dry_run=True))
    status, body = await page.get("/v1/plan/other@1")
    assert (status, body["error"]) == (404, "The plan has no pool other@1 at site B. It has: m@1.")
