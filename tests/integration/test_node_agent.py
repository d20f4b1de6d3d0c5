"""The node agent between real engines and a real NATS server."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from conftest import NatsServer

from node_agent import engine as engine_module
from node_agent import registry as registry_module
from node_agent.main import start
from node_agent.settings import NodeAgentSettings
from tokenfleet import subjects
from tokenfleet.blocks import HASH_BYTES, BlockHasher, id_tokens
from tokenfleet.bus import Bus, Delivery
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState, KvDelta, KvSnapshot
from tokenfleet.service import Service

pytestmark = pytest.mark.integration

SITE = "test"
BLOCK = 16
SECRET = "integration"
PROCESS_START_S = 90.0
"""Two seconds of CPU, but on a machine that may have a dozen such processes waiting."""


@dataclass
class Observer:
    """Hears what the rest of the fleet hears of one instance."""

    bus: Bus
    instance: str
    states: list[InstanceState] = field(default_factory=list)
    deltas: list[KvDelta] = field(default_factory=list)

    async def listen(self) -> None:
        async def on_state(state: InstanceState, _: Delivery) -> None:
            self.states.append(state)

        async def on_delta(delta: KvDelta, _: Delivery) -> None:
            self.deltas.append(delta)

        await self.bus.subscribe(
            subjects.node(SITE, self.instance, "state"),
            InstanceState,
            on_state,
            codec="msgpack",
            ordered=True,
        )
        await self.bus.subscribe(
            subjects.node(SITE, self.instance, "kv"), KvDelta, on_delta, codec="msgpack", ordered=True
        )

    async def record(self) -> InstanceRecord | None:
        bucket = await self.bus.bucket(subjects.BUCKET_INSTANCES)
        found = await bucket.get(subjects.instance_key(SITE, self.instance))
        return msgspec.json.decode(found[0], type=InstanceRecord) if found else None

    async def listed(self) -> bool:
        return await self.record() is not None

    async def unlisted(self) -> bool:
        return await self.record() is None

    async def snapshot(self) -> KvSnapshot:
        return await self.bus.request(subjects.node(SITE, self.instance, "snapshot"), {}, KvSnapshot)

    def blocks_by_deltas(self) -> set[bytes]:
        blocks: set[bytes] = set()
        for delta in self.deltas:
            if delta.cleared:
                blocks.clear()
            blocks -= split(delta.removed)
            blocks |= split(delta.stored)
        return blocks


def split(packed: bytes) -> set[bytes]:
    return {packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)}


async def eventually(condition: Callable[[], bool | Awaitable[bool]], within_s: float = 10.0) -> float:
    """Wait for a condition; returns how long it took."""
    started_s = time.monotonic()
    while True:
        result = condition()
        if await result if isinstance(result, Awaitable) else result:
            return time.monotonic() - started_s
        assert time.monotonic() - started_s < within_s, f"not true within {within_s} s"
        await asyncio.sleep(0.02)


class FakeEngine:
    """The smallest engine: a metrics page whose figures a test sets."""

    def __init__(self) -> None:
        self.prompt_tokens = 100
        self.delay_s = 0.0
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        await asyncio.sleep(self.delay_s)
        return web.Response(
            text=f"vllm:num_requests_running 2.0\nvllm:prompt_tokens_total {self.prompt_tokens}.0\n"
        )


@pytest.fixture
async def fake_engine() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_server.settings("tokenpilot"), "observer")
    yield bus
    await bus.drain()


@pytest.fixture
async def observe(bus: Bus) -> Callable[[str], Awaitable[Observer]]:
    async def observe(instance: str) -> Observer:
        observer = Observer(bus, instance)
        await observer.listen()
        return observer

    return observe


Observe = Callable[[str], Awaitable[Observer]]


@pytest.fixture
async def agent(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Service[NodeAgentSettings]]:
    settings = nats_server.settings(
        "node_agent",
        NodeAgentSettings,
        site=SITE,
        node="node-1",
        engines_dir=tmp_path,
        block_secret=SECRET,
        scrape_timeout_s=0.5,
    )
    service = Service("node-agent", settings, await Bus.connect(settings, "node-agent"))
    await start(service)
    yield service
    await service.stop()


def write_ready_file(folder: Path, instance: str, **fields: Any) -> Path:
    path = folder / f"{instance}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"model": "m", "version": "v1", **fields}))
    temporary.replace(path)
    return path


@contextlib.asynccontextmanager
async def emulated_engine(ready_file: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {
        **os.environ,
        "TOKENFLEET_ENGINE_READY_FILE": str(ready_file),
        "TOKENFLEET_ENGINE_BLOCK_SIZE": str(BLOCK),
        "TOKENFLEET_ENGINE_MODEL": "m",
        "TOKENFLEET_TIME_SCALE": "10",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from node_agent.emulated.main import main; main()", env=environment
    )
    try:
        await eventually(ready_file.exists, within_s=PROCESS_START_S)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def complete(url: str, prompt: list[int], output_tokens: int) -> None:
    body = {"model": "m", "prompt": prompt, "max_tokens": output_tokens}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        await response.read()


def own_hashes(prompt: list[int]) -> set[bytes]:
    return split(BlockHasher(SECRET.encode()).chain(id_tokens(prompt), BLOCK))


async def test_an_engine_joins_reports_its_load_and_blocks_and_leaves_with_its_file(
    agent: Service[NodeAgentSettings], observe: Observe, tmp_path: Path
) -> None:
    observer = await observe("engine-a")
    ready_file = tmp_path / "engine-a.json"
    async with emulated_engine(ready_file):
        await eventually(observer.listed)
        record = await observer.record()
        assert record is not None
        assert (record.node, record.site, record.pool) == ("node-1", SITE, "m@1")
        assert record.kv_events
        assert record.block_size_tokens == BLOCK

        await eventually(lambda: bool(observer.states) and observer.states[-1].reachable)
        assert observer.states[-1].generation == record.generation
        seen = len(observer.states)
        await asyncio.sleep(1.0)
        assert 5 <= len(observer.states) - seen <= 12, "about ten readings a second"

        prompt = list(range(5000, 5000 + 40 * BLOCK + 3))
        await complete(record.url, prompt, output_tokens=2)
        await eventually(lambda: own_hashes(prompt) <= observer.blocks_by_deltas())
        await eventually(lambda: (observer.states[-1].prompt_tokens or 0) >= len(prompt))
        snapshot = await observer.snapshot()
        assert split(snapshot.blocks) == observer.blocks_by_deltas()
        assert snapshot.complete, "followed from the engine's beginning"
        assert snapshot.generation == record.generation
        assert snapshot.sequence >= observer.deltas[-1].sequence
        assert [delta.sequence for delta in observer.deltas] == list(range(1, len(observer.deltas) + 1))

        ready_file.unlink()
        await eventually(observer.unlisted)
        seen = len(observer.states)
        await asyncio.sleep(0.3)
        assert len(observer.states) == seen, "an engine that has left is not read any more"


async def test_a_killed_engine_is_unreachable_at_once_and_unlisted_later(
    agent: Service[NodeAgentSettings], observe: Observe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "UNLISTED_AFTER_S", 1.0)
    observer = await observe("engine-b")
    async with emulated_engine(tmp_path / "engine-b.json") as process:
        await eventually(observer.listed)
        process.kill()
        assert await eventually(lambda: not observer.states[-1].reachable) < 0.5
        last = observer.states[-1]
        assert last.running is None, "the figures of a dead engine are unknown"
        assert await observer.listed(), "one failed reading does not unlist"
        assert await eventually(observer.unlisted, within_s=3.0) > 0.5
        seen = len(observer.states)
        await eventually(lambda: len(observer.states) > seen)


async def test_an_engine_restarted_under_another_pid_is_a_new_generation(
    agent: Service[NodeAgentSettings], observe: Observe, tmp_path: Path
) -> None:
    observer = await observe("engine-c")
    ready_file = tmp_path / "engine-c.json"
    async with emulated_engine(ready_file) as process:
        await eventually(observer.listed)
        first = await observer.record()
        assert first is not None
        await complete(first.url, list(range(10 * BLOCK)), output_tokens=1)
        await eventually(lambda: len(observer.blocks_by_deltas()) >= 10)
        process.kill()
        await process.wait()
        async with emulated_engine(ready_file):

            async def renewed() -> bool:
                record = await observer.record()
                return record is not None and record.generation > first.generation

            await eventually(renewed, within_s=PROCESS_START_S)
            snapshot = await observer.snapshot()
            assert snapshot.generation > first.generation
            assert snapshot.blocks == b""


async def test_a_counter_that_goes_back_is_a_new_generation(
    agent: Service[NodeAgentSettings], observe: Observe, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    observer = await observe("engine-d")
    write_ready_file(tmp_path, "engine-d", url=fake_engine.url)
    await eventually(lambda: bool(observer.states) and observer.states[-1].prompt_tokens == 100)
    first = observer.states[-1].generation
    fake_engine.prompt_tokens = 3
    await eventually(lambda: observer.states[-1].prompt_tokens == 3)
    assert observer.states[-1].generation > first


async def test_an_engine_that_hangs_does_not_delay_another(
    agent: Service[NodeAgentSettings], observe: Observe, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    hanging = FakeEngine()
    await hanging.start()
    hanging.delay_s = 5.0
    healthy = await observe("engine-e")
    hung = await observe("engine-f")
    write_ready_file(tmp_path, "engine-f", url=hanging.url)
    write_ready_file(tmp_path, "engine-e", url=fake_engine.url)
    await eventually(lambda: bool(healthy.states))
    seen = len(healthy.states)
    await asyncio.sleep(1.2)
    assert len(healthy.states) - seen >= 6
    assert hung.states
    assert not hung.states[-1].reachable, "no answer within the scrape timeout"
    assert await hung.unlisted(), "never reached, never listed"
    await hanging.stop()


async def test_an_engine_that_stalls_is_unknown_not_idle(
    agent: Service[NodeAgentSettings], observe: Observe, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    observer = await observe("engine-s")
    write_ready_file(tmp_path, "engine-s", url=fake_engine.url)
    await eventually(lambda: bool(observer.states) and observer.states[-1].running == 2)
    fake_engine.delay_s = 5.0
    await eventually(lambda: not observer.states[-1].reachable)
    fake_engine.delay_s = 0.0
    await eventually(lambda: observer.states[-1].reachable)
    figures = {(state.reachable, state.running, state.prompt_tokens) for state in observer.states}
    assert figures <= {(True, 2, 100), (False, None, None)}
    times = [state.time_ns for state in observer.states]
    assert times == sorted(times)


async def test_records_come_back_when_nats_lost_its_memory(
    agent: Service[NodeAgentSettings],
    observe: Observe,
    fake_engine: FakeEngine,
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_module, "REFRESH_S", 0.3)
    observer = await observe("engine-g")
    write_ready_file(tmp_path, "engine-g", url=fake_engine.url)
    await eventually(observer.listed)
    operator = await Bus.connect(nats_server.settings("operator"), "operator")
    await operator._client.jsm().delete_stream(f"KV_{subjects.BUCKET_INSTANCES}")
    await operator.drain()
    await eventually(observer.listed)


async def test_a_stopped_agent_takes_its_records_with_it_and_drains_on_request(
    observe: Observe, fake_engine: FakeEngine, nats_server: NatsServer, tmp_path: Path, unused_tcp_port: int
) -> None:
    observer = await observe("engine-h")
    write_ready_file(tmp_path, "engine-h", url=fake_engine.url)
    (tmp_path / "broken.json").write_text('{"url": 7}')
    environment = {
        **os.environ,
        **nats_server.environment("node_agent"),
        "TOKENFLEET_SITE": SITE,
        "TOKENFLEET_ENGINES_DIR": str(tmp_path),
        "TOKENFLEET_ADMIN_PORT": str(unused_tcp_port),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from node_agent.main import main; main()",
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    await eventually(observer.listed, within_s=PROCESS_START_S)
    admin = f"http://127.0.0.1:{unused_tcp_port}"
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{admin}/drain/engine-h") as response:
            assert response.status == 200
        record = await observer.record()
        assert record is not None
        assert record.draining
        async with session.post(f"{admin}/drain/unknown") as response:
            assert response.status == 404
            assert "engine-h" in await response.text()
        async with session.get(f"{admin}/health") as response:
            assert (await response.json())["engines"]["engine-h"]["draining"] is True
        async with session.get(f"{admin}/metrics") as response:
            assert "tokenfleet_node_agent_scrape_age_seconds" in await response.text()
    process.send_signal(signal.SIGTERM)
    _, errors = await asyncio.wait_for(process.communicate(), timeout=10)
    assert process.returncode == 0
    assert await observer.unlisted()
    assert b"broken.json" in errors
