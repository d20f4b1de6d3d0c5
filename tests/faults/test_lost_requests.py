"""An ingress that is killed with requests in flight and stays away: each is closed, and the truth still counts later."""

import asyncio
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import httpx2 as httpx
import pytest
from running_stack import RunningStack, start_stack, until

from tokenfleet import subjects
from tokenfleet.bus import Bus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ENGINES = 2
REQUESTS = 24
BOUND_S = 4.0
TIME_SCALE = 10
TIMEOUT_S = 60
"""Engine seconds that a request may take: 6 wall seconds."""

QUERY = "SELECT request_id, outcome, reason, revision, instance FROM {table} WHERE client_request_id LIKE 'inflight-%'"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    stack = start_stack(
        tmp_path_factory.mktemp("lost") / "state",
        *("--engines", str(ENGINES), "--model", "llama-70b", "--time-scale", str(TIME_SCALE)),
        TOKENFLEET_LOST_AFTER_S=str(BOUND_S),
    )
    yield stack
    stack.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def second_ingress(stack: RunningStack, port: int) -> "subprocess.Popen[bytes]":
    """One that nobody restarts when it dies."""
    ingress = stack.start_command(
        *("run", "ingress"), TOKENFLEET_INGRESS_PORT=str(port), TOKENFLEET_INGRESS_NAME="second"
    )

    def ready() -> bool:
        try:
            health = httpx.get(f"http://127.0.0.1:{port}/health", timeout=2.0).json()
        except httpx.HTTPError:
            return False
        return health["instances"]["ready"] >= ENGINES

    until(ready, timeout_s=40.0)
    return ingress


def ask(stack: RunningStack, port: int, number: int) -> None:
    """A request whose answer goes on for longer than its ingress lives."""
    body = {"model": "llama-70b", "prompt": f"{number} " * 200, "max_tokens": 4_000, "stream": True}
    headers = {"Authorization": f"Bearer {stack.api_key}", "x-request-id": f"inflight-{number}"}
    url = f"http://127.0.0.1:{port}/v1/completions"
    try:
        with httpx.stream("POST", url, headers=headers, json=body, timeout=60.0) as answer:
            for _ in answer.iter_raw():
                pass
    except httpx.HTTPError:
        return  # killed


def rows(stack: RunningStack, table: str) -> list[Any]:
    async def fetch() -> list[Any]:
        connection = await asyncpg.connect(stack.run["postgres_dsn"])
        try:
            return await connection.fetch(QUERY.format(table=table))
        finally:
            await connection.close()

    return asyncio.run(fetch())


def submitted(stack: RunningStack) -> set[str]:
    """The ids of the requests that were submitted under our names."""

    async def read() -> set[str]:
        bus = await Bus.connect(stack.settings(), "operator")
        try:
            reading = bus.read_stored(subjects.STREAM_REQUESTS, [subjects.ALL_SUBMITTED], 0)
            events = [json.loads(stored.data) async for stored in reading]
        finally:
            await bus.drain()
        return {
            event["request_id"]
            for event in events
            if event["request"].get("client_request_id", "").startswith("inflight-")
        }

    return asyncio.run(read())


def verify(stack: RunningStack) -> None:
    verified = stack.command("audit", "verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["clean"]


def test_requests_of_an_ingress_that_is_gone_are_closed_and_its_truth_counts_when_it_is_back(
    stack: RunningStack,
):
    stack.wait_ready(ENGINES)
    until(lambda: stack.command("policy", "set", f"request_timeout_s={TIMEOUT_S}").returncode == 0)
    port = free_port()
    ingress = second_ingress(stack, port)
    with ThreadPoolExecutor(REQUESTS) as clients:
        asked = [clients.submit(ask, stack, port, number) for number in range(REQUESTS)]
        until(lambda: len(submitted(stack)) == REQUESTS)
        time.sleep(0.5)  # some have seen a first token by now
        ingress.kill()
        ingress.wait()
        for each in asked:
            each.result(timeout=60)
    ids = submitted(stack)

    until(lambda: len(rows(stack, "ledger_current")) >= len(ids), timeout_s=60.0, every_s=0.5)
    closed = rows(stack, "ledger_current")
    assert {row["request_id"] for row in closed} == ids
    assert len(closed) == len(ids), "exactly one row counts for each"
    lost = [row for row in closed if row["outcome"] == "lost"]
    assert lost, "the ingress was killed after all had ended"
    assert {row["reason"] for row in lost} == {"no_outcome"}
    assert [row for row in lost if row["instance"]], "some had been routed"
    verify(stack)
    told = stack.command("audit", "trace", lost[0]["request_id"])
    assert "nobody said how it ended" in told.stdout

    # The same ingress again: its journal says what became of them.
    ingress = second_ingress(stack, port)
    try:
        until(
            lambda: not [r for r in rows(stack, "ledger_current") if r["outcome"] == "lost"], timeout_s=40.0
        )
        now = rows(stack, "ledger_current")
        assert {row["request_id"] for row in now} == ids and len(now) == len(ids)
        corrected = [row for row in now if row["request_id"] in {each["request_id"] for each in lost}]
        assert {row["revision"] for row in corrected} == {1}
        # Others had their outcome in the journal, and the kill came before it was published.
        assert "ingress_restarted" in {row["reason"] for row in corrected}
        assert len(rows(stack, "ledger")) == len(ids) + len(lost), "the corrected rows are still there"
        verify(stack)
    finally:
        ingress.terminate()
        ingress.wait(timeout=20)
