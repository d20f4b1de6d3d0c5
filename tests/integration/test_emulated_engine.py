"""The emulated engine as a process, as clients and node agents see it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
import zmq
import zmq.asyncio

from tokenfleet.blocks import text_tokens
from tokenfleet.engine.profile import LLAMA70B_TP4_H100, prefill_s

MODEL = "emulated-70b"
TIME_SCALE = 5.0
BLOCK_TOKENS = 64
START_S = 60.0


class EngineProcess:
    """A running engine and its ready file."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.ready_file = folder / "engines" / "engine.json"
        settings = {
            "ENGINE_MODEL": MODEL,
            "ENGINE_READY_FILE": str(self.ready_file),
            "TIME_SCALE": str(TIME_SCALE),
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from node_agent.emulated.main import main; main()"],
            env=os.environ | {f"TOKENFLEET_{name}": value for name, value in settings.items()},
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + START_S
        while not self.ready_file.exists():
            assert self.process.poll() is None, "the engine ended before it was ready"
            assert time.monotonic() < deadline, "the engine is not ready"
            time.sleep(0.02)
        return json.loads(self.ready_file.read_bytes())

    def wait_until_ended(self) -> tuple[int, str]:
        try:
            _, log = self.process.communicate(timeout=START_S)
        finally:
            self.process.kill()
        return self.process.returncode, log

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.wait_until_ended()


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    engine = EngineProcess(tmp_path_factory.mktemp("engine"))
    yield engine.wait_until_ready()
    engine.stop()


@pytest.fixture
def client(ready: dict[str, Any]) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=ready["url"] + "/v1", api_key="none", max_retries=0)


def prompt(name: str, tokens: int) -> str:
    """A prompt of exactly so many tokens, sharing nothing with one of another name."""
    text = (name * (4 * tokens))[: 4 * tokens]
    assert len(text_tokens(text)) == tokens
    return text


async def metric(ready: dict[str, Any], series: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(ready["url"] + "/metrics") as response:
        page = await response.text()
    return next(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(series))


async def eventually(ready: dict[str, Any], series: str, wanted: float) -> None:
    for _ in range(200):
        if await metric(ready, series) == wanted:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{series} is {await metric(ready, series)}, not {wanted}")


def test_the_ready_file_tells_a_node_agent_everything(ready: dict[str, Any]):
    assert ready["url"].startswith("http://127.0.0.1:")
    assert ready["kv_events_endpoint"].startswith("tcp://127.0.0.1:")
    assert ready["kv_replay_endpoint"].startswith("tcp://127.0.0.1:")
    assert ready["model"] == MODEL
    assert ready["profile"] == "llama70b-tp4-h100"
    assert ready["block_size_tokens"] == BLOCK_TOKENS
    assert ready["kv_capacity_tokens"] == 450_560
    assert ready["tokens_per_chunk"] == 8
    os.kill(ready["pid"], 0)


async def test_the_openai_client_gets_a_whole_chat(client: openai.AsyncOpenAI):
    messages: Any = [{"role": "user", "content": "How are you?"}]
    answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert len(text_tokens(answer.choices[0].message.content)) == 20
    assert answer.usage
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20
    again = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
    assert again.choices[0].message.content == answer.choices[0].message.content


async def test_the_openai_client_streams_a_chat_in_chunks(client: openai.AsyncOpenAI):
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me more."}],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"emulated_output_tokens": 400},
    )
    chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(text_tokens("".join(texts))) == 400
    assert 2 <= len(texts) <= 2 + 400 // 8, "after the first, tokens share chunks"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 400


async def test_the_openai_client_streams_a_completion(client: openai.AsyncOpenAI):
    stream = await client.completions.create(
        model=MODEL, prompt=[1, 2, 3], max_tokens=12, stream=True, extra_body={"emulated_output_tokens": 99}
    )
    chunks = [chunk async for chunk in stream]
    assert len(text_tokens("".join(chunk.choices[0].text for chunk in chunks))) == 12
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_ttft_is_what_the_engine_model_says(client: openai.AsyncOpenAI):
    expected_s = prefill_s(LLAMA70B_TP4_H100, 8_192, 0)
    measured_s: list[float] = []
    for name in ("one.", "two.", "three"):
        started = time.monotonic()
        stream = await client.completions.create(
            model=MODEL, prompt=prompt(name, 8_192), max_tokens=2, stream=True
        )
        await anext(aiter(stream))
        measured_s.append((time.monotonic() - started) * TIME_SCALE)
        await stream.close()
    assert min(measured_s) >= expected_s
    assert min(measured_s) <= expected_s * 1.5, "what HTTP and a busy machine add stays small"


async def test_a_shared_prefix_is_reported_as_cached_the_second_time(client: openai.AsyncOpenAI):
    text = prompt("reuse", 1_000)
    first = await client.completions.create(model=MODEL, prompt=text, max_tokens=1)
    second = await client.completions.create(model=MODEL, prompt=text + " and more", max_tokens=1)
    for answer, cached_tokens in ((first, 0), (second, 1_000 // BLOCK_TOKENS * BLOCK_TOKENS)):
        assert answer.usage
        assert answer.usage.prompt_tokens_details
        assert answer.usage.prompt_tokens_details.cached_tokens == cached_tokens


async def test_errors_have_openais_form_and_status(client: openai.AsyncOpenAI, ready: dict[str, Any]):
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        await client.completions.create(model="no-such-model", prompt="x")
    with pytest.raises(openai.BadRequestError, match="131072"):
        await client.completions.create(model=MODEL, prompt=prompt("long", 131_072))
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        await client.completions.create(model=MODEL, prompt="x", max_tokens=-1)
    async with (
        aiohttp.ClientSession() as session,
        session.post(ready["url"] + "/v1/completions", data=b'{"prompt": ') as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["code"] == 400


async def test_models_health_and_version_answer(client: openai.AsyncOpenAI, ready: dict[str, Any]):
    models = await client.models.list()
    assert [model.id for model in models.data] == [MODEL]
    async with aiohttp.ClientSession(ready["url"]) as session:
        async with session.get("/health") as health:
            assert health.status == 200
        async with session.get("/version") as version:
            assert await version.json() == {"version": "1"}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_frees_its_request_at_once(ready: dict[str, Any], stream: bool):
    aborted = 'vllm:request_success_total{finished_reason="abort"'
    before = await metric(ready, aborted)
    body = {
        "prompt": "x",
        "max_tokens": 100_000,
        "stream": stream,
        "emulated_output_tokens": 100_000,
    }
    async with aiohttp.ClientSession() as session:
        call = asyncio.create_task(session.post(ready["url"] + "/v1/completions", json=body))
        await eventually(ready, "vllm:num_requests_running", 1)
        if stream:
            (await call).close()
        else:
            call.cancel()
            await asyncio.wait([call])
    await eventually(ready, aborted, before + 1)
    assert await metric(ready, "vllm:num_requests_running") == 0
    assert await metric(ready, "vllm:kv_cache_usage_perc") == 0


async def test_kv_events_tell_what_is_cached_and_can_be_replayed(
    client: openai.AsyncOpenAI, ready: dict[str, Any]
):
    context = zmq.asyncio.Context()
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    try:
        subscriber.connect(ready["kv_events_endpoint"])
        subscriber.subscribe(b"")
        dealer.connect(ready["kv_replay_endpoint"])
        await asyncio.sleep(0.2)

        text = prompt("events", 3 * BLOCK_TOKENS + 5)
        await client.completions.create(model=MODEL, prompt=text, max_tokens=1)
        first_sequence, payload = await next_batch(subscriber)
        (stored,) = msgspec.msgpack.decode(payload)[1]
        tag, hashes, parent, token_ids, block_size, lora, medium = stored
        assert (tag, parent, block_size, lora, medium) == ("BlockStored", None, BLOCK_TOKENS, None, "GPU")
        assert token_ids == text_tokens(text)[: 3 * BLOCK_TOKENS].tolist()
        assert len(set(hashes)) == 3

        longer = text + prompt("and then", BLOCK_TOKENS)
        await client.completions.create(model=MODEL, prompt=longer, max_tokens=1)
        sequence, payload = await next_batch(subscriber)
        assert sequence == first_sequence + 1
        assert msgspec.msgpack.decode(payload)[1][0][2] == hashes[-1], "the new block names its parent"

        async with aiohttp.ClientSession() as session:
            await session.post(ready["url"] + "/reset_prefix_cache")
        _, payload = await next_batch(subscriber)
        assert msgspec.msgpack.decode(payload)[1] == [["AllBlocksCleared"]]

        await dealer.send_multipart([b"", first_sequence.to_bytes(8, "big")])
        replayed = [(await asyncio.wait_for(dealer.recv_multipart(), 5))[1] for _ in range(4)]
        assert [int.from_bytes(frame, "big", signed=True) for frame in replayed] == [
            first_sequence,
            first_sequence + 1,
            first_sequence + 2,
            -1,
        ]
    finally:
        context.destroy(linger=0)


async def next_batch(subscriber: zmq.asyncio.Socket) -> tuple[int, bytes]:
    _, sequence, payload = await asyncio.wait_for(subscriber.recv_multipart(), 5)
    return int.from_bytes(sequence, "big"), payload


async def test_it_stops_cleanly_in_the_middle_of_a_stream_and_takes_its_ready_file_away(tmp_path: Path):
    engine = EngineProcess(tmp_path, ENGINE_KV_EVENTS_PORT="-1")
    ready = engine.wait_until_ready()
    assert ready["kv_events_endpoint"] is None
    body = {"prompt": "x", "max_tokens": 5_000, "stream": True, "emulated_output_tokens": 5_000}
    async with aiohttp.ClientSession() as session:
        response = await session.post(ready["url"] + "/v1/completions", json=body)
        assert await response.content.readany()
        status, log = await asyncio.to_thread(engine.stop, signal.SIGINT)
    assert status == 0, log
    assert "Traceback" not in log
    assert not engine.ready_file.exists()


def test_a_taken_port_ends_it_with_a_message(ready: dict[str, Any], tmp_path: Path):
    port = ready["url"].rsplit(":", 1)[1]
    engine = EngineProcess(tmp_path, ENGINE_PORT=port)
    status, log = engine.wait_until_ended()
    assert status == 1
    assert f"Cannot listen on 127.0.0.1:{port}" in log
    assert "Traceback" not in log
