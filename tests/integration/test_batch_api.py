"""The batch API as a client has it: real ingresses, real Postgres and NATS, engines and deciders of the test."""

import asyncio
import contextlib
import hashlib
import json
import secrets
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import msgspec
import openai
import pytest
from aiohttp import web
from conftest import NatsServer
from integration.ingress_world import (
    KEY,
    IngressProcess,
    World,
    answer_well,
    hang,
    ingress_process,
    refuse,
    world,
)
from openai.types import Batch

from goodput_accountant.migrations import migrate
from goodput_accountant.settings import REPOSITORY_MIGRATIONS
from tokenfleet import subjects
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import Event, Submitted

pytestmark = pytest.mark.integration

URL = "/v1/completions"
OVER = ("completed", "failed", "expired", "cancelled")
LEASE_S = 1.0
OTHER_KEY = "sk-" + secrets.token_hex(16)
OTHER = Tenant(tenant="other", key_hashes=(hashlib.sha256(OTHER_KEY.encode()).hexdigest(),))
UPLOAD_MEMORY_BYTES = 48 << 20


@pytest.fixture(scope="module")
def batch_environment(nats_server: NatsServer, postgres_dsn: str) -> dict[str, str]:
    async def bring_up_to_date() -> None:
        await migrate(await asyncpg.connect(postgres_dsn), Path(REPOSITORY_MIGRATIONS))

    asyncio.run(bring_up_to_date())
    return nats_server.environment("ingress") | {
        "TOKENFLEET_POSTGRES_DSN": postgres_dsn,
        "TOKENFLEET_INGRESS_BATCH_LEASE_S": str(LEASE_S),
        "TOKENFLEET_INGRESS_BATCH_CONCURRENCY": "16",
        # A minute's window is then two seconds.
        "TOKENFLEET_TIME_SCALE": "30",
    }


@pytest.fixture(scope="module")
def ingress(
    batch_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[IngressProcess]:
    process = ingress_process(batch_environment, tmp_path_factory.mktemp("ingress"))
    process.start()
    yield process
    assert process.stop() == 0
    assert b"Traceback" not in process.log.read_bytes(), process.log.read_text()


@pytest.fixture
async def fleet(nats_server: NatsServer, ingress: IngressProcess) -> AsyncIterator[World]:
    async with world(nats_server.settings("operator"), ingress.url) as fleet:
        tenants = await fleet.bus.bucket(subjects.BUCKET_TENANTS)
        await tenants.put(subjects.token(OTHER.tenant), msgspec.json.encode(OTHER))
        yield fleet


@contextlib.asynccontextmanager
async def openai_client(url: str, key: str = KEY) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
async def client(ingress: IngressProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(ingress.url) as client:
        yield client


def jsonl(model: str, count: int, **changes: Any) -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": f"c{number}",
                "method": "POST",
                "url": URL,
                "body": {"model": model, "prompt": f"p{number}", "max_tokens": 3} | changes,
            }
        ).encode()
        + b"\n"
        for number in range(count)
    )


async def create(client: openai.AsyncOpenAI, data: bytes, window: Any = "24h", **more: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=URL, completion_window=window, **more)


async def until(
    client: openai.AsyncOpenAI, batch_id: str, holds: Callable[[Batch], bool], patience_s: float = 20.0
) -> Batch:
    deadline = time.monotonic() + patience_s
    while True:
        batch = await client.batches.retrieve(batch_id)
        if holds(batch):
            return batch
        assert time.monotonic() < deadline, batch
        await asyncio.sleep(0.05)


def is_over(batch: Batch) -> bool:
    return batch.status in OVER


def completed_at_least(count: int) -> Callable[[Batch], bool]:
    return lambda batch: batch.request_counts is not None and batch.request_counts.completed >= count


async def results(client: openai.AsyncOpenAI, batch: Batch) -> tuple[list[Any], list[Any]]:
    """The lines of the output and the error file, after checking that they add up to the counts."""
    good, bad = [
        [json.loads(line) for line in (await client.files.content(file_id)).content.splitlines()]
        if file_id
        else []
        for file_id in (batch.output_file_id, batch.error_file_id)
    ]
    counts = batch.request_counts
    assert counts is not None
    assert (len(good), len(bad)) == (counts.completed, counts.failed)
    assert counts.completed + counts.failed == counts.total
    assert len({line["custom_id"] for line in good + bad}) == counts.total
    return good, bad


def prompts(fleet: World) -> Counter[str]:
    """How often the engines were asked for each prompt."""
    return Counter(json.loads(body)["prompt"] for engine in fleet.engines.values() for body in engine.bodies)


async def slowly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(0.05)
    return await answer_well(request, body)


async def first_ones_only(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers the first twenty and hangs at the others."""
    return await (answer_well if int(body["prompt"][1:]) < 20 else hang)(request, body)


# -- the whole life


async def test_a_batch_from_its_upload_to_its_results(client: openai.AsyncOpenAI, fleet: World):
    engine = await fleet.add_engine("a")
    data = jsonl(fleet.model, 40)
    file = await client.files.create(file=("mine.jsonl", data), purpose="batch")
    assert (file.object, file.purpose, file.filename, file.bytes) == (
        "file",
        "batch",
        "mine.jsonl",
        len(data),
    )
    assert (await client.files.content(file.id)).content == data
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h", metadata={"nightly": "1"}
    )
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"nightly": "1"})
    batch = await until(client, batch.id, is_over)
    assert batch.status == "completed"
    assert batch.in_progress_at is not None
    assert batch.finalizing_at is not None
    assert batch.completed_at is not None
    assert batch.error_file_id is None, "there is no file of errors without errors"
    good, _ = await results(client, batch)
    assert [line["custom_id"] for line in good] == [f"c{number}" for number in range(40)]
    assert {line["response"]["status_code"] for line in good} == {200}
    assert good[0]["response"]["body"]["choices"][0]["text"] == "one two three"
    assert len({line["response"]["request_id"] for line in good}) == 40
    assert set(prompts(fleet).values()) == {1}
    ended = [await asyncio.wait_for(fleet.ended.get(), 5) for _ in range(40)]
    assert {one.outcome for one in ended} == {"completed"}
    assert {one.request_id for one in ended} == {line["response"]["request_id"] for line in good}
    assert {one.client_request_id for one in ended} == {f"{batch.id}/{number}" for number in range(1, 41)}
    listed = [item.id async for item in client.files.list(purpose="batch_output")]
    assert batch.output_file_id in listed
    assert batch.id in [item.id async for item in client.batches.list(limit=1)]
    deleted = await client.files.delete(file.id)
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    assert len(engine.bodies) == 40


async def test_lines_are_told_to_the_deciders_as_batch_work_with_its_deadline(
    client: openai.AsyncOpenAI, fleet: World
):
    await fleet.add_engine("a")
    batch = await create(client, jsonl(fleet.model, 1, service_tier="priority"), "3h")
    batch = await until(client, batch.id, is_over)
    request = (await fleet.submitted.get()).request
    assert (request.service_tier, request.task, request.stream) == ("flex", "batch", False)
    assert request.due_ns == request.deadline_ns
    assert batch.expires_at is not None
    assert abs(request.due_ns / 1e9 - batch.expires_at) < 1.0
    assert batch.expires_at - batch.created_at == pytest.approx(3 * 3600 / 30, abs=1)


async def test_what_is_wrong_with_a_file_is_told_by_line(client: openai.AsyncOpenAI, fleet: World):
    await fleet.add_engine("a")
    data = (
        jsonl(fleet.model, 1)
        + b"{oops\n"
        + jsonl(fleet.model, 1)
        + jsonl("gpt-9", 2).splitlines(keepends=True)[-1]
        + jsonl(fleet.model, 3, stream=True).splitlines(keepends=True)[-1]
    )
    batch = await until(client, (await create(client, data)).id, is_over)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(error.line, error.code) for error in batch.errors.data or []] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "model_not_found"),
        (5, "stream_not_supported"),
    ]
    assert prompts(fleet) == Counter()


async def test_requests_that_make_no_sense_are_answered_like_openai_does(
    client: openai.AsyncOpenAI, fleet: World
):
    with pytest.raises(openai.BadRequestError) as wrong:
        await create(client, jsonl(fleet.model, 1), "15d")
    assert wrong.value.param == "completion_window"
    file = await client.files.create(file=("a", b"x"), purpose="batch")
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    assert wrong.value.param == "endpoint"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.files.create(file=("a", b"x"), purpose="fine-tune")
    assert wrong.value.param == "purpose"
    for path in ("/v1/files", "/v1/batches"):
        async with fleet.session.post(
            path, data=b"no form", headers={"content-type": "text/plain"}
        ) as response:
            assert response.status == 400
            assert (await response.json())["error"]["message"]
    async with fleet.session.get("/v1/batches?limit=1000") as response:
        assert (await response.json())["error"]["param"] == "limit"
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_nothing")


async def test_of_others_there_is_nothing_to_see(
    client: openai.AsyncOpenAI, fleet: World, ingress: IngressProcess
):
    await fleet.add_engine("a")
    batch = await until(client, (await create(client, jsonl(fleet.model, 2))).id, is_over)
    async with openai_client(ingress.url, OTHER_KEY) as other:
        for call in (
            other.files.retrieve(batch.input_file_id),
            other.files.content(batch.output_file_id or ""),
            other.files.delete(batch.input_file_id),
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
            other.batches.create(input_file_id=batch.input_file_id, endpoint=URL, completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert [item async for item in other.files.list()] == []
        assert [item async for item in other.batches.list()] == []
    async with openai_client(ingress.url, "sk-unknown") as nobody:
        with pytest.raises(openai.AuthenticationError):
            await nobody.batches.list()


# -- refusals


async def test_a_refused_line_waits_and_interactive_requests_go_on(client: openai.AsyncOpenAI, fleet: World):
    await fleet.add_engine("a")
    accept, busy = fleet.decide, True
    assert accept is not None

    def decide(submitted: Submitted) -> Any:
        if busy and submitted.request.task == "batch":
            answer: list[Event] = [refuse(submitted, f"{fleet.model}@v1")]
            return answer
        return accept(submitted)

    fleet.decide = decide
    batch = await create(client, jsonl(fleet.model, 4))
    async with asyncio.timeout(5):
        for _ in range(4):
            await fleet.submitted.get()
    answer = await client.completions.create(model=fleet.model, prompt="p", max_tokens=3)
    assert answer.choices[0].text == "one two three"
    batch = await client.batches.retrieve(batch.id)
    assert batch.status == "in_progress"
    busy = False
    batch = await until(client, batch.id, is_over)
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed) == ("completed", 4)


async def test_a_request_the_engine_refuses_is_in_the_file_of_errors(
    client: openai.AsyncOpenAI, fleet: World
):
    async def picky(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["prompt"] == "p1":
            return web.json_response({"error": {"message": "too long"}}, status=400)
        return await answer_well(request, body)

    await fleet.add_engine("a", picky)
    batch = await until(client, (await create(client, jsonl(fleet.model, 3))).id, is_over)
    _, bad = await results(client, batch)
    assert [(line["custom_id"], line["response"]["status_code"]) for line in bad] == [("c1", 400)]
    assert bad[0]["response"]["body"] == {"error": {"message": "too long"}}
    assert bad[0]["error"] is None


# -- in the middle


async def test_cancelling_ends_what_runs_at_the_engine(client: openai.AsyncOpenAI, fleet: World):
    engine = await fleet.add_engine("a", first_ones_only)
    batch = await create(client, jsonl(fleet.model, 60))
    await until(client, batch.id, completed_at_least(20))
    batch = await client.batches.cancel(batch.id)
    assert batch.status == "cancelling"
    await asyncio.wait_for(engine.cancelled.wait(), 2.0)
    batch = await until(client, batch.id, is_over)
    assert batch.status == "cancelled"
    good, bad = await results(client, batch)
    assert (len(good), len(bad)) == (20, 40)
    assert {line["error"]["code"] for line in bad} == {"batch_cancelled"}
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(batch.id)
    await fleet.until_health(lambda health: health["in_flight"] == 0)


async def test_at_the_deadline_a_batch_expires_with_what_was_done(client: openai.AsyncOpenAI, fleet: World):
    await fleet.add_engine("a", first_ones_only)
    batch = await create(client, jsonl(fleet.model, 60), "2m")
    batch = await until(client, batch.id, is_over)
    assert batch.status == "expired"
    assert batch.expired_at is not None
    good, bad = await results(client, batch)
    assert (len(good), len(bad)) == (20, 40)
    assert {line["error"]["code"] for line in bad} == {"batch_expired"}
    await fleet.until_health(lambda health: health["in_flight"] == 0)


# -- ingresses die, stop and share


async def test_a_killed_ingress_goes_on_where_it_was(
    client: openai.AsyncOpenAI, fleet: World, ingress: IngressProcess
):
    await fleet.add_engine("a", slowly)
    batch = await create(client, jsonl(fleet.model, 300))
    await until(client, batch.id, completed_at_least(60))
    assert ingress.stop(signal.SIGKILL) == -signal.SIGKILL
    asked_before = prompts(fleet)
    await asyncio.to_thread(ingress.start)
    batch = await until(client, batch.id, is_over)
    assert batch.status == "completed"
    good, _ = await results(client, batch)
    assert len(good) == 300
    again = [prompt for prompt, times in prompts(fleet).items() if times > 1]
    assert len(again) <= 16, "only what was in flight is run again"
    assert max(prompts(fleet).values()) <= 2
    assert len(asked_before) < 300
    # Every first attempt that was cut off is settled, too.
    outcomes = Counter[str]()
    async with asyncio.timeout(5):
        while outcomes.total() < 300 + outcomes["failed"]:
            outcomes[(await fleet.ended.get()).outcome] += 1
    assert outcomes["completed"] >= 300


async def test_an_ingress_that_stops_gives_its_lines_to_another_at_once(
    fleet: World,
    ingress: IngressProcess,
    client: openai.AsyncOpenAI,
    batch_environment: dict[str, str],
    tmp_path: Path,
):
    await fleet.add_engine("a", slowly)
    second = ingress_process(batch_environment, tmp_path)
    await asyncio.to_thread(second.start)
    try:
        batch = await create(client, jsonl(fleet.model, 1_200))
        async with openai_client(second.url) as other_door:
            await until(other_door, batch.id, completed_at_least(60))
            # In a thread: the engines and deciders of this test must go on meanwhile.
            assert await asyncio.to_thread(second.stop) == 0
        batch = await until(client, batch.id, is_over)
    finally:
        if second.process is not None and second.process.poll() is None:
            second.stop(signal.SIGKILL)
    good, _ = await results(client, batch)
    assert len(good) == 1_200
    assert set(prompts(fleet).values()) == {1}, (
        "two ingresses shared the work, and one stopped, without a line twice"
    )


# -- large files


def memory(process: IngressProcess, field: str) -> int:
    """Bytes of a field of /proc/PID/status."""
    assert process.process is not None
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


async def test_fifty_thousand_lines_are_taken_in_without_being_held(
    client: openai.AsyncOpenAI, fleet: World, ingress: IngressProcess
):
    await fleet.add_engine("a", hang)
    await until(client, (await create(client, jsonl(fleet.model, 1), "1m")).id, is_over)
    before = memory(ingress, "VmRSS")
    assert ingress.process is not None
    Path(f"/proc/{ingress.process.pid}/clear_refs").write_text("5")
    with tempfile.TemporaryFile() as data:
        data.write(jsonl(fleet.model, 50_000, user="x" * 800))
        size = data.tell()
        data.seek(0)
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", data, filename="large.jsonl")
        async with fleet.session.post("/v1/files", data=form) as response:
            assert response.status == 200, await response.text()
            file = await response.json()
    assert file["bytes"] == size > 45_000_000
    batch = await client.batches.create(input_file_id=file["id"], endpoint=URL, completion_window="24h")
    batch = await until(client, batch.id, lambda batch: batch.status != "validating")
    assert batch.status == "in_progress", batch.errors
    assert batch.request_counts is not None
    assert batch.request_counts.total == 50_000
    digest, length = hashlib.sha256(), 0
    async with fleet.session.get(f"/v1/files/{file['id']}/content") as response:
        async for chunk in response.content.iter_any():
            digest.update(chunk)
            length += len(chunk)
    assert length == size
    await client.batches.cancel(batch.id)
    batch = await until(client, batch.id, is_over)
    assert batch.request_counts is not None
    assert batch.request_counts.failed == 50_000
    grown = memory(ingress, "VmHWM") - before
    print(f"grew by {grown >> 20} MiB for a file of {size >> 20} MiB")
    assert grown < UPLOAD_MEMORY_BYTES, f"grew by {grown >> 20} MiB for a file of {size >> 20} MiB"


async def test_a_file_or_line_beyond_the_limit_leaves_nothing(
    batch_environment: dict[str, str], nats_server: NatsServer, tmp_path: Path
):
    limits = {
        "TOKENFLEET_INGRESS_BATCH_MAX_FILE_BYTES": "100000",
        "TOKENFLEET_INGRESS_MAX_BODY_BYTES": "5000",
    }
    process = ingress_process(batch_environment, tmp_path, **limits)
    process.start()
    try:
        async with world(nats_server.settings("operator"), process.url), openai_client(process.url) as client:
            files = [item.id async for item in client.files.list()]
            for data in (b"x\n" * 60_000, b"a\n" + b"x" * 6_000):
                with pytest.raises(openai.APIStatusError) as error:
                    await client.files.create(file=("large", data), purpose="batch")
                assert error.value.status_code == 413
            assert [item.id async for item in client.files.list()] == files
    finally:
        process.stop()


# -- without Postgres


async def test_without_a_database_the_batch_api_says_so_and_the_rest_works(
    nats_server: NatsServer, tmp_path: Path
):
    process = ingress_process(nats_server.environment("ingress"), tmp_path)
    process.start()
    try:
        async with (
            world(nats_server.settings("operator"), process.url) as fleet,
            openai_client(process.url) as client,
        ):
            await fleet.add_engine("a")
            with pytest.raises(openai.InternalServerError) as error:
                await client.batches.list()
            assert (error.value.status_code, error.value.code) == (503, "batch_unavailable")
            answer = await client.completions.create(model=fleet.model, prompt="p", max_tokens=3)
            assert answer.usage is not None
    finally:
        assert process.stop() == 0
