"""`tokenfleet plan`: what is shown of FleetMind's plan, and what is said when there is none."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner
from rich.console import Console

from console.commands.plan import readings
from console.main import cli
from console.plans import render
from tokenfleet.contracts.control import DemandForecast, Plan, PoolPlanned, UnservedWork
from tokenfleet.errors import UnavailableError

MADE_NS = 1_800_000_000 * 10**9
PLAN = Plan(
    time_ns=MADE_NS,
    site="A",
    covers=["A", "B"],
    dry_run=True,
    pools=[
        PoolPlanned(
            site="B",
            pool="llama@1",
            model="llama",
            ready=2,
            warming=1,
            wanted=5,
            prewarm=2,
            work=3.52,
            bears=4.0,
            reason="demand rises",
        )
    ],
    forecasts=[
        DemandForecast(
            site="B",
            model="llama",
            horizon_s=360.0,
            expected=3.1,
            upper=3.52,
            error=0.12,
            naive_error=None,
            form="trend",
        )
    ],
    unserved=[UnservedWork(site="B", model="llama", work=0.6, reason="no GPU is free")],
)


def shown(plan: Plan) -> str:
    console = Console(width=170)
    with console.capture() as capture:
        console.print(render(plan, MADE_NS + 12 * 10**9), highlight=False)
    return capture.get()


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if f" {name} " in line]
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def test_each_pool_says_what_runs_what_is_wanted_and_why_and_each_forecast_its_error():
    text = shown(PLAN)
    assert row(text, "llama@1") == ["B", "llama@1", "2", "1", "5", "2", "3.52 of 4.00", "demand rises"]
    assert row(text, "trend") == [
        "B",
        "llama",
        "anywhere",
        "6 min",
        "3.10",
        "3.52",
        "±12%",
        "unknown",
        "trend",
    ]
    assert "Not served: 0.60 of llama that enters at B: no GPU is free" in text


def test_a_dry_run_is_said_plainly_and_so_is_a_plan_in_force():
    assert "Planned 12 s ago at site A for A, B. Dry run: nothing is scaled by it" in shown(PLAN)
    assert "In force: KEDA is told" in shown(PLAN.model_copy(update={"dry_run": False}))


def test_a_fleet_without_pools_or_requests_says_so():
    text = shown(PLAN.model_copy(update={"pools": [], "forecasts": [], "unserved": []}))
    assert "No pool is known." in text
    assert "Nothing was asked for yet." in text


async def fleetmind(status: int, body: str) -> TestServer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/plan", answer)
    server = TestServer(app)
    await server.start_server()
    return server


async def read(status: int, body: str) -> Plan:
    server = await fleetmind(status, body)
    try:
        async for plan in readings(str(server.make_url("/"))):
            return plan
        raise AssertionError
    finally:
        await server.close()


async def test_the_plan_is_read_of_fleetmind():
    assert await read(200, PLAN.model_dump_json()) == PLAN


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, '{"error": "There is no plan for site A yet: because."}', "no plan for site A yet: because"),
        (200, '{"pools": 7}', "Is it of another version"),
        (404, "{}", "does not answer"),
    ],
)
async def test_why_there_is_no_plan_is_said(status: int, body: str, said: str):
    with pytest.raises(UnavailableError, match=said):
        await read(status, body)


async def test_json_is_the_plan_itself():
    server = await fleetmind(200, PLAN.model_dump_json())
    url = str(server.make_url("/"))
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["plan", "--url", url, "--json"])
    await server.close()
    assert Plan.model_validate_json(result.output) == PLAN
