"""What deciders are told of a prompt is what the engine will compute of it, over real HTTP and real NATS."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_tokenizers as tiny
from aiohttp import web
from conftest import NatsServer
from integration.ingress_world import IngressProcess, World, ingress_process, world

from tokenfleet.blocks import BlockHasher
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.settings import DEVELOPMENT_BLOCK_SECRET

pytestmark = pytest.mark.integration

MODEL = "tiny-llama"
HASHER = BlockHasher(DEVELOPMENT_BLOCK_SECRET.encode())
BLOCK = 16
MESSAGES = [{"role": "user", "content": "what is the weather like? " * 8}]
FIRST = (
    "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n" + MESSAGES[0]["content"] + "<|im_end|>\n"
)


@pytest.fixture(scope="module")
def ingress(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngressProcess]:
    folder = tmp_path_factory.mktemp("ingress")
    tokenizers = {MODEL: str(tiny.folder(folder / "model", tiny.with_bos()))}
    process = ingress_process(
        nats_server.environment("ingress"), folder, TOKENFLEET_INGRESS_TOKENIZERS=json.dumps(tokenizers)
    )
    process.start()
    yield process
    assert process.stop() == 0
    assert b"Traceback" not in process.log.read_bytes(), process.log.read_text()


@pytest.fixture
async def fleet(nats_server: NatsServer, ingress: IngressProcess) -> AsyncIterator[World]:
    """Its model has a tokenizer."""
    async with world(nats_server.settings("operator"), ingress.url, model=MODEL) as fleet:
        yield fleet


@pytest.fixture
async def other_fleet(nats_server: NatsServer, ingress: IngressProcess) -> AsyncIterator[World]:
    """Its model has none."""
    async with world(nats_server.settings("operator"), ingress.url) as fleet:
        yield fleet


async def told(fleet: World, path: str = "/v1/chat/completions", **fields: Any) -> RequestSpec:
    """What deciders are told of a request that is served."""
    async with fleet.session.post(path, json={"model": fleet.model, **fields}) as response:
        assert response.status == 200, await response.text()
    return (await asyncio.wait_for(fleet.submitted.get(), 5.0)).request


async def counted(fleet: World, method: str) -> float:
    """How many of the model's prompts were tokenized by a method."""
    async with fleet.session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    pattern = re.compile(r"tokenfleet_ingress_prompts_total\{(.*)\} (.*)")
    found = [match.groups() for line in lines if (match := pattern.match(line))]
    return sum(
        float(value)
        for labels, value in found
        if f'tokenfleet_tokenization="{method}"' in labels and f'"{fleet.model}"' in labels
    )


def hashes(ids: list[int]) -> bytes:
    return HASHER.chain(np.array(ids, dtype=np.uint32), BLOCK)


async def test_a_chat_is_told_by_its_templates_token_ids_and_its_next_turn_begins_with_its_blocks(
    fleet: World,
) -> None:
    await fleet.add_engine("a", block_size_tokens=BLOCK)
    before = await counted(fleet, "tokenizer")
    first = await told(fleet, messages=MESSAGES)
    ids = tiny.with_bos().encode(FIRST + "<|im_start|>assistant\n", add_special_tokens=False).ids
    assert (first.input_tokens, first.blocks) == (len(ids), hashes(ids))
    more = [{"role": "assistant", "content": "It rains."}, {"role": "user", "content": "and tomorrow?"}]
    second = await told(fleet, messages=MESSAGES + more)
    assert second.blocks.startswith(first.blocks)
    assert await counted(fleet, "tokenizer") == before + 2
    health = await fleet.health()
    assert health["tokenization"][MODEL] == {"chat": "tokenizer", "text": "tokenizer"}


async def test_a_completion_begins_with_the_token_that_begins_every_sequence(fleet: World) -> None:
    await fleet.add_engine("a", block_size_tokens=BLOCK)
    text = tiny.SENTENCES[1]
    spec = await told(fleet, "/v1/completions", prompt=text)
    ids = tiny.with_bos().encode(text).ids
    assert ids[0] == tiny.with_bos().token_to_id("<s>")
    assert (spec.input_tokens, spec.blocks) == (len(ids), hashes(ids))


async def test_a_salted_chat_is_counted_and_has_no_blocks(fleet: World) -> None:
    await fleet.add_engine("a", block_size_tokens=BLOCK)
    plain = await told(fleet, messages=MESSAGES)
    salted = await told(fleet, messages=MESSAGES, cache_salt="mine")
    assert (salted.input_tokens, salted.blocks) == (plain.input_tokens, b"")


async def test_without_a_tokenizer_the_engine_is_asked_and_then_characters_serve(other_fleet: World) -> None:
    fleet = other_fleet

    def tokenize(body: dict[str, Any]) -> web.Response:
        tokens = list(range(40)) if "messages" in body else [7] * 20
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": 1000})

    engine = await fleet.add_engine("a", tokenize=tokenize, block_size_tokens=BLOCK)
    by_engine = {"chat": "engine", "text": "engine"}
    await fleet.until_health(lambda health: health["tokenization"][fleet.model] == by_engine)
    asked = await told(fleet, messages=MESSAGES)
    assert (asked.input_tokens, asked.blocks) == (40, hashes(list(range(40))))
    asked = await told(fleet, "/v1/completions", prompt="hi")
    assert (asked.input_tokens, asked.blocks) == (20, hashes([7] * 20))
    assert await counted(fleet, "engine") == 2

    engine.tokenize = lambda _: web.Response(status=500)
    for _ in range(4):
        spec = await told(fleet, "/v1/completions", prompt="x" * 400)
        assert spec.input_tokens == 100, "four characters each"
    health = await fleet.health()
    assert health["tokenization"][fleet.model] == {"chat": "characters", "text": "characters"}
    assert await counted(fleet, "characters") == 4


async def test_an_engine_without_tokenize_is_served_by_characters(other_fleet: World) -> None:
    await other_fleet.add_engine("a", block_size_tokens=BLOCK)
    spec = await told(other_fleet, "/v1/completions", prompt="x" * 400)
    assert spec.input_tokens == 100
    assert len(spec.blocks) == 8 * (100 // BLOCK)


def test_a_folder_without_a_tokenizer_stops_the_start_with_one_clear_line(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    process = ingress_process(
        nats_server.environment("ingress"),
        tmp_path,
        TOKENFLEET_INGRESS_TOKENIZERS=json.dumps({MODEL: str(tmp_path)}),
    )
    started = subprocess.run(
        [sys.executable, "-c", "from ingress.main import main; main()"],
        env=os.environ | process.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert started.returncode == 1
    (line,) = [line for line in started.stderr.splitlines() if '"critical"' in line]
    assert f"TOKENFLEET_INGRESS_TOKENIZERS, {MODEL}: {tmp_path} has no tokenizer.json" in line
    assert "Traceback" not in started.stderr
