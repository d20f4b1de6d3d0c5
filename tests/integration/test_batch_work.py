"""Batches in a real Postgres, shared by ingresses whose fleet is played by the test."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from opentelemetry.metrics import NoOpMeterProvider

from goodput_accountant.migrations import migrate
from goodput_accountant.settings import REPOSITORY_MIGRATIONS
from ingress.batch.asking import LineAnswer
from ingress.batch.batches import Batches
from ingress.batch.database import Database
from ingress.batch.files import Files
from ingress.batch.keeper import Keeper
from ingress.batch.metrics import BatchMetrics
from ingress.batch.objects import BatchObject, CreateBatch, batch_object
from ingress.batch.runner import Runner
from ingress.batch.splitting import LineSplitter
from ingress.batch.work import Work
from ingress.errors import ApiError
from ingress.validation import Operation
from tokenfleet.clock import SystemClock
from tokenfleet.contracts.policy import Tenant
from tokenfleet.errors import UnavailableError
from tokenfleet.live import LiveTenants

pytestmark = pytest.mark.integration

ACME = "acme"
URL = "/v1/completions"
OVER = ("completed", "failed", "expired", "cancelled")
LEASE_S = 1.0

Answer = Callable[[str], Awaitable[LineAnswer]]
"""Answers the request whose prompt is this."""


def request_line(number: int, **changes: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": f"p{number}", "max_tokens": 3}
    return {"custom_id": f"c{number}", "method": "POST", "url": URL, "body": body} | changes


def jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def well(_: str) -> LineAnswer:
    await asyncio.sleep(0.001)
    return LineAnswer(200, "req-1", b'{"object": "text_completion"}')


async def never(_: str) -> LineAnswer:
    await asyncio.sleep(60)
    raise AssertionError


@dataclass
class Ingress:
    """What one ingress process has of batches."""

    database: Database
    runner: Runner
    keeper: Keeper
    files: Files
    batches: Batches
    answer: Answer = well
    asked: list[str] = field(default_factory=list)
    """The prompts it asked for, in order."""
    cancelled: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def keep(self) -> None:
        while True:
            with contextlib.suppress(UnavailableError):
                while await self.keeper.step():
                    self.runner.wake()
            await asyncio.sleep(0.05)

    def start(self) -> None:
        self.runner.start()
        self.tasks.append(asyncio.create_task(self.keep()))

    async def die(self) -> None:
        """End as by SIGKILL: nothing is given back, nothing more is written."""
        runner: Any = self.runner
        tasks = [*self.tasks, *runner._background, *runner._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.database.close()


@dataclass
class Bench:
    dsn: str
    tenants: LiveTenants
    ingresses: list[Ingress] = field(default_factory=list)

    async def ingress(self, answer: Answer = well, concurrency: int = 8, max_lines: int = 50_000) -> Ingress:
        """One more ingress, at work."""
        database = Database(self.dsn, 4)
        await database.connect()

        async def ask(
            _: Tenant, operation: Operation, body: bytes, *, due_ns: int, client_request_id: str
        ) -> LineAnswer:
            assert operation == "text_completion"
            assert due_ns > 0
            assert client_request_id.startswith("batch_")
            prompt = json.loads(body)["prompt"]
            made.asked.append(prompt)
            try:
                return await made.answer(prompt)
            except asyncio.CancelledError:
                made.cancelled.append(prompt)
                raise

        runner = Runner(
            Work(database, f"ingress-{len(self.ingresses)}", LEASE_S),
            ask,
            self.tenants,
            SystemClock(),
            BatchMetrics(NoOpMeterProvider().get_meter("test")),
            concurrency=concurrency,
            lease_s=LEASE_S,
        )
        keeper = Keeper(
            database,
            lambda tenant, model: tenant in self.tenants.by_name and model == "m",
            max_bytes=1 << 20,
            max_lines=max_lines,
            keep_s=3600,
        )
        made = Ingress(
            database, runner, keeper, Files(database, 3600, 1 << 30), Batches(database, 3, 1.0), answer
        )
        self.ingresses.append(made)
        made.start()
        return made

    async def batch(self, ingress: Ingress, lines: list[dict[str, Any]] | bytes, tenant: str = ACME) -> str:
        """A new batch of these lines; its id."""
        file_id = await upload(ingress, lines, tenant)
        record = await ingress.batches.create(
            tenant, CreateBatch(input_file_id=file_id, endpoint=URL, completion_window="24h")
        )
        return record["batch_id"]

    async def until(
        self, batch_id: str, holds: Callable[[BatchObject], bool], tenant: str = ACME
    ) -> BatchObject:
        deadline = time.monotonic() + 15
        while True:
            with contextlib.suppress(UnavailableError):
                batch = await self.get(batch_id, tenant)
                if holds(batch):
                    return batch
                assert time.monotonic() < deadline, batch
            await asyncio.sleep(0.02)

    async def get(self, batch_id: str, tenant: str = ACME) -> BatchObject:
        alive = next(item for item in self.ingresses if not item.database._closing)
        return batch_object(await alive.batches.get(tenant, batch_id))

    async def over(self, batch_id: str, tenant: str = ACME) -> BatchObject:
        return await self.until(batch_id, lambda batch: batch.status in OVER, tenant)

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        alive = next(item for item in self.ingresses if not item.database._closing)
        content = b"".join([piece async for piece in alive.files.content(file_id)])
        return [json.loads(line) for line in content.splitlines()]

    async def results(self, batch: BatchObject) -> list[dict[str, Any]]:
        """Both files, after checking that they add up to the counts."""
        good, bad = await self.lines(batch.output_file_id), await self.lines(batch.error_file_id)
        counts = batch.request_counts
        assert (len(good), len(bad)) == (counts.completed, counts.failed)
        assert counts.completed + counts.failed == counts.total
        assert len({line["custom_id"] for line in good + bad}) == counts.total
        return good + bad

    async def execute(self, statement: str, *arguments: Any) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(statement, *arguments)
        finally:
            await connection.close()

    async def close(self) -> None:
        for ingress in self.ingresses:
            if not ingress.database._closing:
                for task in ingress.tasks:
                    task.cancel()
                await ingress.runner.stop(1.0)
                await ingress.database.close()


async def upload(ingress: Ingress, lines: list[dict[str, Any]] | bytes, tenant: str = ACME) -> str:
    data = lines if isinstance(lines, bytes) else jsonl(lines)
    splitter = LineSplitter(1 << 20, 100_000)
    splitter.feed(data)
    splitter.finish()
    file_id = await ingress.files.begin(tenant, "in.jsonl")
    await ingress.files.append(file_id, splitter.piece(), splitter.bytes, splitter.lines)
    await ingress.files.finish(file_id)
    return file_id


@pytest.fixture
async def bench(postgres_dsn: str) -> AsyncIterator[Bench]:
    await migrate(await asyncpg.connect(postgres_dsn), Path(REPOSITORY_MIGRATIONS))
    tenants = LiveTenants()
    tenants.by_name |= {name: Tenant(tenant=name) for name in (ACME, "other", "third")}
    bench = Bench(postgres_dsn, tenants)
    await bench.execute("TRUNCATE batch.files, batch.file_lines, batch.batches, batch.lines")
    yield bench
    await bench.close()


# -- the whole life


async def test_every_line_has_one_result_in_the_order_of_the_input(bench: Bench):
    async def answer(prompt: str) -> LineAnswer:
        number = int(prompt[1:])
        await asyncio.sleep(0.01 * (number % 3))
        if number % 10 == 7:
            return LineAnswer(400, f"r{number}", b'{"error": {"message": "no"}}')
        return LineAnswer(200, f"r{number}", b'{"n": %d}' % number)

    ingress = await bench.ingress(answer)
    batch = await bench.over(await bench.batch(ingress, [request_line(number) for number in range(100)]))
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (90, 10)
    await bench.results(batch)
    good = await bench.lines(batch.output_file_id)
    wanted = [number for number in range(100) if number % 10 != 7]
    assert [line["custom_id"] for line in good] == [f"c{number}" for number in wanted]
    assert [line["response"]["body"]["n"] for line in good] == wanted
    bad = await bench.lines(batch.error_file_id)
    assert bad[0]["response"] == {
        "status_code": 400,
        "request_id": "r7",
        "body": {"error": {"message": "no"}},
    }
    assert Counter(ingress.asked) == Counter(f"p{number}" for number in range(100))
    record = await ingress.files.get(ACME, batch.output_file_id or "")
    content = b"".join([piece async for piece in ingress.files.content(record["file_id"])])
    assert record["bytes"] == len(content)
    assert record["lines"] == 90


async def test_a_file_that_does_not_hold_a_batch_fails_it_with_the_lines_named(bench: Bench):
    ingress = await bench.ingress(max_lines=3)
    broken = jsonl([request_line(0), request_line(1)]) + b"oops\n" + jsonl([request_line(0)])
    batch = await bench.over(await bench.batch(ingress, broken))
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [
        ("invalid_json_line", 3),
        ("duplicate_custom_id", 4),
    ]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.request_counts.total == 0
    many = await bench.over(await bench.batch(ingress, [request_line(number) for number in range(4)]))
    assert many.errors is not None
    assert [error.code for error in many.errors.data] == ["too_many_tasks"]
    large = [request_line(0, custom_id=f"{n}", note="x" * 300_000) for n in range(4)]
    too_large = await bench.over(await bench.batch(ingress, large))
    assert too_large.errors is not None
    assert [error.code for error in too_large.errors.data] == ["file_too_large"]
    assert ingress.asked == [], "nothing of a batch that is refused is run"


# -- refusals and failures


async def test_a_busy_fleet_delays_lines_and_fails_none(bench: Bench):
    refused: Counter[str] = Counter()

    async def busy_at_first(prompt: str) -> LineAnswer:
        refused[prompt] += 1
        if refused[prompt] == 1:
            return LineAnswer(429, "r", b'{"error": {}}', 0.1)
        return await well(prompt)

    ingress = await bench.ingress(busy_at_first)
    batch = await bench.over(await bench.batch(ingress, [request_line(number) for number in range(12)]))
    assert (batch.status, batch.request_counts.completed) == ("completed", 12)
    assert set(refused.values()) == {2}


async def test_an_engine_that_keeps_failing_is_the_lines_result_after_a_few_tries(bench: Bench):
    async def broken(_: str) -> LineAnswer:
        return LineAnswer(502, "r", b"<html>bad gateway</html>")

    ingress = await bench.ingress(broken)
    batch = await bench.over(await bench.batch(ingress, [request_line(0)]))
    assert (batch.status, batch.request_counts.failed) == ("completed", 1)
    (line,) = await bench.results(batch)
    assert line["response"]["status_code"] == 502
    assert line["response"]["body"] == "<html>bad gateway</html>"
    assert len(ingress.asked) == 3


async def test_a_fault_of_ours_is_a_server_error_and_not_the_end_of_the_batch(bench: Bench):
    async def faulty(prompt: str) -> LineAnswer:
        if prompt == "p0":
            raise RuntimeError("a fault")
        return await well(prompt)

    ingress = await bench.ingress(faulty)
    batch = await bench.over(await bench.batch(ingress, [request_line(number) for number in range(3)]))
    await bench.results(batch)
    (bad,) = await bench.lines(batch.error_file_id)
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("c0", 500)
    assert ingress.asked.count("p0") == 3


async def test_one_tenants_flood_leaves_places_for_another(bench: Bench):
    async def slow(prompt: str) -> LineAnswer:
        await asyncio.sleep(0.05)
        return await well(prompt)

    ingress = await bench.ingress(slow, concurrency=8)
    flood = await bench.batch(ingress, [request_line(number) for number in range(400)])
    await bench.until(flood, lambda batch: batch.request_counts.completed > 0)
    small = await bench.batch(ingress, [request_line(number) for number in range(10)], "other")
    await bench.over(small, "other")
    assert (await bench.get(flood)).request_counts.completed < 200


# -- cancelling and expiring


async def test_cancelling_in_the_middle_ends_what_runs_and_keeps_what_was_done(bench: Bench):
    async def some_hang(prompt: str) -> LineAnswer:
        return await (well if int(prompt[1:]) < 20 else never)(prompt)

    ingress = await bench.ingress(some_hang, concurrency=8)
    batch_id = await bench.batch(ingress, [request_line(number) for number in range(60)])
    await bench.until(
        batch_id, lambda batch: batch.request_counts.completed == 20 and len(ingress.asked) == 28
    )
    began_s = time.monotonic()
    record = await ingress.batches.cancel(ACME, batch_id)
    assert record["status"] == "cancelling"
    ingress.runner.cancel(batch_id)
    batch = await bench.over(batch_id)
    assert time.monotonic() - began_s < 2.0
    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (20, 40)
    results = await bench.results(batch)
    assert {line["error"]["code"] for line in results if line["error"]} == {"batch_cancelled"}
    assert len(ingress.cancelled) == 8
    with pytest.raises(ApiError, match="cancelled cannot be cancelled"):
        await ingress.batches.cancel(ACME, batch_id)


async def test_another_ingress_cancels_its_lines_soon_after(bench: Bench):
    first, second = await bench.ingress(never), await bench.ingress(never)
    batch_id = await bench.batch(first, [request_line(number) for number in range(16)])
    async with asyncio.timeout(5):
        while len(first.asked) + len(second.asked) < 16:
            await asyncio.sleep(0.02)
    await first.batches.cancel(ACME, batch_id)
    await bench.over(batch_id)
    async with asyncio.timeout(2):
        while len(first.cancelled) + len(second.cancelled) < 16:
            await asyncio.sleep(0.02)


async def test_at_the_deadline_what_is_left_expires_and_what_was_done_stays(bench: Bench):
    async def some_hang(prompt: str) -> LineAnswer:
        return await (well if int(prompt[1:]) < 20 else never)(prompt)

    ingress = await bench.ingress(some_hang, concurrency=8)
    batch_id = await bench.batch(ingress, [request_line(number) for number in range(60)])
    await bench.until(
        batch_id, lambda batch: batch.request_counts.completed == 20 and len(ingress.asked) == 28
    )
    await bench.execute("UPDATE batch.batches SET due_at = now() WHERE batch_id = $1", batch_id)
    batch = await bench.over(batch_id)
    assert (batch.status, batch.completed_at) == ("expired", None)
    assert batch.expired_at is not None
    assert batch.finalizing_at is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (20, 40)
    results = await bench.results(batch)
    assert {line["error"]["code"] for line in results if line["error"]} == {"batch_expired"}
    async with asyncio.timeout(2):
        while len(ingress.cancelled) < 8:
            await asyncio.sleep(0.02)


# -- several ingresses, and their ends


async def test_two_ingresses_share_a_batch_and_run_no_line_twice(bench: Bench):
    async def slow(prompt: str) -> LineAnswer:
        await asyncio.sleep(0.01)
        return await well(prompt)

    first, second = await bench.ingress(slow), await bench.ingress(slow)
    batch = await bench.over(await bench.batch(first, [request_line(number) for number in range(300)]))
    assert batch.request_counts.completed == 300
    await bench.results(batch)
    assert Counter(first.asked + second.asked) == Counter(f"p{number}" for number in range(300))
    assert min(len(first.asked), len(second.asked)) > 50


async def test_a_dead_ingresss_lines_are_taken_over_after_its_lease(bench: Bench):
    async def some_hang(prompt: str) -> LineAnswer:
        return await (well if int(prompt[1:]) < 20 else never)(prompt)

    first = await bench.ingress(some_hang)
    batch_id = await bench.batch(first, [request_line(number) for number in range(40)])
    await bench.until(batch_id, lambda batch: batch.request_counts.completed == 20)
    second = await bench.ingress()
    await first.die()
    in_flight = set(first.asked[20:])
    batch = await bench.over(batch_id)
    assert batch.request_counts.completed == 40
    await bench.results(batch)
    again = [prompt for prompt, times in Counter(first.asked + second.asked).items() if times > 1]
    assert set(again) <= in_flight, "a line whose result was stored is never run again"


async def test_an_ingress_that_stops_in_order_gives_its_lines_back_at_once(bench: Bench):
    first = await bench.ingress(never)
    batch_id = await bench.batch(first, [request_line(number) for number in range(8)])
    async with asyncio.timeout(5):
        while len(first.asked) < 8:
            await asyncio.sleep(0.02)
    for task in first.tasks:
        task.cancel()
    await first.runner.stop(1.0)
    await first.database.close()
    began_s = time.monotonic()
    second = await bench.ingress()
    await bench.until(batch_id, lambda batch: batch.request_counts.completed == 8)
    assert time.monotonic() - began_s < LEASE_S
    assert len(second.asked) == 8


async def test_a_line_longer_than_a_lease_is_run_once(bench: Bench):
    async def long(prompt: str) -> LineAnswer:
        await asyncio.sleep(2.5 * LEASE_S)
        return await well(prompt)

    first, second = await bench.ingress(long), await bench.ingress(long)
    batch = await bench.over(await bench.batch(first, [request_line(0)]))
    assert batch.request_counts.completed == 1
    assert len(first.asked + second.asked) == 1


async def test_while_postgres_is_away_results_wait_and_nothing_is_lost(bench: Bench):
    release = asyncio.Event()

    async def when_released(prompt: str) -> LineAnswer:
        await release.wait()
        return await well(prompt)

    ingress = await bench.ingress(when_released)
    batch_id = await bench.batch(ingress, [request_line(number) for number in range(8)])
    async with asyncio.timeout(5):
        while len(ingress.asked) < 8:
            await asyncio.sleep(0.02)
    database = bench.dsn.partition("?")[0].rpartition("/")[2]
    other = bench.dsn.replace(database, "postgres")
    keep_out = f'ALTER DATABASE "{database}" WITH ALLOW_CONNECTIONS '
    connection = await asyncpg.connect(other)
    try:
        await connection.execute(f"{keep_out} false")
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database
        )
        release.set()
        await asyncio.sleep(1.0)
        with pytest.raises(UnavailableError):
            await ingress.batches.get(ACME, batch_id)
        assert not ingress.database.available
    finally:
        await connection.execute(f"{keep_out} true")
        await connection.close()
    batch = await bench.over(batch_id)
    assert batch.request_counts.completed == 8
    assert len(ingress.asked) == 8, "the answers were kept, so nothing was asked again"


# -- tenants and limits


async def test_files_and_batches_of_others_do_not_exist(bench: Bench):
    ingress = await bench.ingress()
    batch = await bench.over(await bench.batch(ingress, [request_line(0)]))
    for call in (
        ingress.batches.get("other", batch.id),
        ingress.batches.cancel("other", batch.id),
        ingress.files.get("other", batch.input_file_id),
        ingress.files.delete("other", batch.output_file_id or ""),
        ingress.batches.create(
            "other", CreateBatch(input_file_id=batch.input_file_id, endpoint=URL, completion_window="24h")
        ),
    ):
        with pytest.raises(ApiError) as error:
            await call
        assert error.value.status == 404
    assert await ingress.batches.list("other", None, 10) == []
    assert await ingress.files.list("other", None, None, 10, ascending=True) == []


async def test_only_so_many_unfinished_batches(bench: Bench):
    ingress = await bench.ingress(never)
    for _ in range(3):
        await bench.batch(ingress, [request_line(0)])
    with pytest.raises(ApiError) as error:
        await bench.batch(ingress, [request_line(0)])
    assert (error.value.status, error.value.code) == (429, "too_many_batches")


async def test_lists_go_page_by_page_from_the_newest(bench: Bench):
    ingress = await bench.ingress()
    ids = []
    for _ in range(5):
        ids.append(await bench.batch(ingress, [request_line(0)]))
        await bench.over(ids[-1])
    newest_first, seen, after = ids[::-1], [], None
    while True:
        records = await ingress.batches.list(ACME, after, 2)
        seen += [record["batch_id"] for record in records[:2]]
        if len(records) <= 2:
            break
        after = seen[-1]
    assert seen == newest_first


async def test_a_file_in_use_stays_and_one_past_its_time_goes(bench: Bench):
    ingress = await bench.ingress(never)
    batch_id = await bench.batch(ingress, [request_line(0)])
    used = (await bench.get(batch_id)).input_file_id
    with pytest.raises(ApiError) as error:
        await ingress.files.delete(ACME, used)
    assert (error.value.status, error.value.code) == (409, "file_in_use")
    unused = await upload(ingress, [request_line(0)])
    await bench.execute("UPDATE batch.files SET expires_at = now() - interval '1 second'")
    await ingress.files.sweep()
    assert (await ingress.files.get(ACME, used))["lines"] == 1
    with pytest.raises(ApiError, match="No such File"):
        await ingress.files.get(ACME, unused)
