"""Whatever is killed while requests flow: the ledger is what the events make of it, and tampering with it is found.

One stack and one replay; each test goes on from where the one before left it.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx2 as httpx
import pytest
from running_stack import TOKENFLEET, RunningStack, start_stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(230)]

ENGINES = 4
REQUESTS = 300
KILLED = ("goodput-accountant", "engine-1", "ingress")
OUTCOMES = ("completed", "rejected", "timed_out", "cancelled", "failed", "lost")
FIRST_FAULT_S = 4.0
BETWEEN_FAULTS_S = 3.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    stack = start_stack(
        tmp_path_factory.mktemp("audit") / "state",
        *("--engines", str(ENGINES), "--model", "llama-70b", "--time-scale", "10"),
    )
    yield stack
    stack.stop()


@pytest.fixture(scope="module")
def replayed(stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a replay during which processes were killed."""
    stack.wait_ready(ENGINES)
    output = tmp_path_factory.mktemp("replay") / "report.json"
    replay = subprocess.Popen(
        [
            *(str(TOKENFLEET), "replay", "generated", "--requests", str(REQUESTS), "--speed", "0.8"),
            *("--model", "llama-70b", "--json", str(output)),
        ],
        env=stack.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        time.sleep(FIRST_FAULT_S)
        for name in KILLED:
            pid = stack.kill(name)
            stack.wait_restarted(name, pid)
            time.sleep(BETWEEN_FAULTS_S)
        pid = stack.pid("nats")
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        stack.wait_restarted("nats", pid)
        assert replay.poll() is None, "the replay was over before the last fault"
        text, _ = replay.communicate(timeout=150)
    finally:
        if replay.poll() is None:
            replay.kill()
    assert replay.returncode == 0, text
    return json.loads(output.read_text())


def execute(stack: RunningStack, statement: str) -> list[Any]:
    """What somebody with all rights on the database can do."""

    async def run() -> list[Any]:
        connection = await asyncpg.connect(stack.run["postgres_dsn"])
        try:
            await connection.execute("SET session_replication_role = replica")
            return await connection.fetch(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


def one_request(stack: RunningStack, request_id: str) -> None:
    answer = httpx.post(
        f"{stack.api_url}/v1/completions",
        headers={"Authorization": f"Bearer {stack.api_key}", "x-request-id": request_id},
        json={"model": "llama-70b", "prompt": "hello", "max_tokens": 4},
        timeout=60.0,
    )
    assert answer.status_code == 200, answer.text


def test_every_request_of_the_replay_is_accounted_for(replayed: dict[str, Any]):
    assert replayed["offered"] == REQUESTS == replayed["ledger_rows"]
    assert sum(replayed.get(outcome, 0) for outcome in OUTCOMES) == REQUESTS
    assert replayed["missing"] == replayed["duplicated"] == []


def test_the_ledger_is_what_its_events_make_of_it(stack: RunningStack, replayed: dict[str, Any]):
    verified = stack.command("audit", "verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    verdict = json.loads(verified.stdout)
    assert verdict["rows"] >= REQUESTS
    assert verdict["events"] >= verdict["rows"]
    assert verdict["unbookable"] == verdict["uncovered"] == 0


def test_a_row_changed_by_hand_is_named(stack: RunningStack, replayed: dict[str, Any]):
    victim = execute(
        stack,
        "SELECT request_id, output_tokens FROM ledger WHERE outcome = 'completed' ORDER BY random() LIMIT 1",
    )[0]
    request_id, tokens = victim["request_id"], victim["output_tokens"]
    execute(stack, f"UPDATE ledger SET output_tokens = {tokens + 1} WHERE request_id = '{request_id}'")
    try:
        verified = stack.command("audit", "verify", "--json")
        shown = stack.command("audit", "verify")
    finally:
        execute(stack, f"UPDATE ledger SET output_tokens = {tokens} WHERE request_id = '{request_id}'")
    assert verified.returncode == shown.returncode == 1
    verdict = json.loads(verified.stdout)
    [difference], [broken] = verdict["differences"], verdict["breaks"]
    assert difference["request_id"] == broken["request_id"] == request_id
    assert difference["columns"] == {"output_tokens": {"should_be": tokens, "is": tokens + 1}}
    assert request_id in shown.stdout
    assert stack.command("audit", "verify").returncode == 0


def test_exported_files_verify_the_same_ledger(stack: RunningStack, replayed: dict[str, Any], tmp_path: Path):
    exported = stack.command("audit", "export", "--out", str(tmp_path / "kept"), "--json")
    assert exported.returncode == 0, exported.stderr
    files = [each["path"] for each in json.loads(exported.stdout)]
    verified = stack.command(
        "audit", "verify", "--json", *(part for path in files for part in ("--events", path))
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["events"] >= REQUESTS


def test_the_whole_story_of_a_request_is_told(stack: RunningStack, replayed: dict[str, Any]):
    stack.wait_ready(ENGINES)
    one_request(stack, "told")

    def story() -> dict[str, Any] | None:
        told = stack.command("audit", "trace", "told", "--json")
        assert told.returncode == 0, told.stderr
        found = json.loads(told.stdout)
        return found if found["booked"] else None

    told = until(story, timeout_s=20.0, every_s=0.5)
    events = [(line["who"], line["event"]) for line in told["lines"]]
    for expected in (
        ("ingress", "submitted"),
        ("fleetmind", "placed"),
        ("slomax", "admitted"),
        ("tokenpilot", "routed"),
        ("ingress", "completed"),
    ):
        assert expected in events
    [booked] = told["booked"]
    assert booked["as_rules_say"] is True
    assert booked["follows"] is True


def test_a_request_whose_engine_was_killed_tells_of_its_retry(stack: RunningStack, replayed: dict[str, Any]):
    retried = execute(
        stack, "SELECT request_id FROM ledger WHERE attempt > 1 AND outcome = 'completed' LIMIT 1"
    )
    if not retried:
        pytest.skip("no request was waiting for its first token at the engine that was killed")
    told = stack.command("audit", "trace", retried[0]["request_id"])
    assert "and another attempt follows" in told.stdout
