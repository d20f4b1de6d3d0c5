"""Engines are asked for token ids only when that can hold nobody up."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp import web
from fleets import record

from ingress.engine_connection import Timeouts
from ingress.tokenization.chat import Chat
from ingress.tokenization.engine import FAILURES_TO_OPEN, EngineTokenizers
from ingress.upstream import EngineClient
from tokenfleet.contracts.fleet import InstanceRecord

CHAT = Chat(
    [{"role": "user", "content": "hi"}],
    [{"type": "function", "function": {"name": "f"}}],
    {"add_generation_prompt": True, "continue_final_message": False, "enable_thinking": False},
    False,
)
Reply = Callable[[dict[str, Any]], web.Response | float]
"""An answer, or for how long there is none."""


def ids(*tokens: int, count: int | None = None) -> web.Response:
    return web.json_response({"tokens": tokens, "count": len(tokens) if count is None else count})


def vllm(_: dict[str, Any]) -> web.Response:
    return ids(1, 2, 3)


def only_prompts(body: dict[str, Any]) -> web.Response:
    """As SGLang's older servers."""
    return ids(1, 2, 3) if "prompt" in body else web.json_response({"error": "prompt is missing"}, status=400)


@dataclass
class Engine:
    """An engine's `/tokenize` that answers as `reply` says."""

    reply: Reply
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(json.loads(await request.read()))
        answer = self.reply(self.bodies[-1])
        if isinstance(answer, web.Response):
            return answer
        await asyncio.sleep(answer)
        return ids(9)


@dataclass
class World:
    """Engines, what asks them, and a clock of waits that a test moves on."""

    tokenizers: EngineTokenizers
    runners: list[web.AppRunner]
    background: list[asyncio.Task[None]]
    waits: list[float]
    wake: asyncio.Event

    async def add(self, name: str, reply: Reply, generation: int = 1) -> tuple[Engine, InstanceRecord]:
        """Start an engine and register it; returns when what it can do was found out, or it was given up for now."""
        engine = Engine(reply)
        app = web.Application()
        app.router.add_post("/tokenize", engine.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.runners.append(runner)
        engine.url = "http://{}:{}".format(*runner.addresses[0][:2])
        made = record(name, url=engine.url, generation=generation)
        self.tokenizers.watch(name, made)
        await self.settled()
        engine.bodies.clear()
        return engine, made

    async def settled(self) -> None:
        """Until each background task is done or waits for its next try."""
        waits = len(self.waits)
        async with asyncio.timeout(5):
            while any(not task.done() for task in self.background) and len(self.waits) == waits:
                await asyncio.sleep(0.005)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    background: list[asyncio.Task[None]] = []
    waits: list[float] = []
    wake = asyncio.Event()

    def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
        background.append(asyncio.ensure_future(coroutine))

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)
        await wake.wait()
        wake.clear()

    client = EngineClient(Timeouts(1.0, 5.0, 5.0))
    tokenizers = EngineTokenizers(client, spawn, timeout_s=0.15, concurrency=2, sleep=sleep)
    made = World(tokenizers, [], background, waits, wake)
    yield made
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    await client.close()
    for runner in made.runners:
        await runner.cleanup()


async def test_a_text_is_asked_for_as_the_completions_api_would_tokenize_it(world: World) -> None:
    engine, made = await world.add("a", vllm)
    got = await world.tokenizers.text([made], "hello", True)
    assert got is not None
    assert got.tolist() == [1, 2, 3]
    assert engine.bodies == [{"model": made.model, "prompt": "hello", "add_special_tokens": True}]


async def test_a_chat_is_asked_for_with_all_that_shapes_its_prompt(world: World) -> None:
    engine, made = await world.add("a", vllm)
    assert await world.tokenizers.chat([made], CHAT) is not None
    assert engine.bodies == [
        {
            "model": made.model,
            "messages": CHAT.messages,
            "tools": CHAT.tools,
            "add_generation_prompt": True,
            "continue_final_message": False,
            "add_special_tokens": False,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ]


async def test_an_engine_that_takes_only_prompts_is_asked_for_no_chat(world: World) -> None:
    engine, made = await world.add("a", only_prompts)
    assert await world.tokenizers.text([made], "hello", True) is not None
    assert await world.tokenizers.chat([made], CHAT) is None
    assert len(engine.bodies) == 1


NOT_OFFERED: dict[str, Reply] = {
    "not found": lambda _: web.Response(status=404),
    "wants a key": lambda _: web.Response(status=401),
    "another dialect, tokens of nothing": lambda _: web.json_response({"tokens": []}),
    "another dialect, a list": lambda _: web.json_response([{"id": 1, "text": "a"}]),
    "strings": lambda _: web.json_response({"tokens": ["a"], "count": 1}),
    "a wrong count": lambda _: ids(1, 2, count=3),
    "negative": lambda _: ids(-1),
    "a page": lambda _: web.Response(text="<html>"),
}


@pytest.mark.parametrize("what", NOT_OFFERED)
async def test_what_does_not_answer_as_known_is_never_asked_again_in_that_life(
    world: World, what: str
) -> None:
    engine, made = await world.add("a", NOT_OFFERED[what])
    assert await world.tokenizers.text([made], "hello", True) is None
    world.tokenizers.watch("a", made)
    await world.settled()
    assert engine.bodies == []


async def test_a_new_life_of_an_engine_is_asked_anew(world: World) -> None:
    engine, _ = await world.add("a", NOT_OFFERED["not found"])
    engine.reply = vllm
    reborn = record("a", url=engine.url, generation=2)
    world.tokenizers.watch("a", reborn)
    await world.settled()
    assert await world.tokenizers.text([reborn], "hello", True) is not None


async def test_an_engine_that_is_gone_is_not_asked(world: World) -> None:
    engine, made = await world.add("a", vllm)
    world.tokenizers.watch("a", None)
    assert await world.tokenizers.text([made], "hello", True) is None
    assert engine.bodies == []


async def test_an_engine_that_starts_slowly_is_tried_again_ever_more_rarely(world: World) -> None:
    engine, made = await world.add("a", lambda _: web.Response(status=503))
    for _ in range(3):
        world.wake.set()
        await world.settled()
    assert world.waits == [1.0, 2.0, 4.0, 8.0]
    engine.reply = vllm
    world.wake.set()
    await world.settled()
    assert await world.tokenizers.text([made], "hello", True) is not None


@pytest.mark.parametrize("failure", [30.0, web.Response(status=500)])
async def test_a_failing_engine_costs_a_few_requests_a_bounded_time_and_then_none(
    world: World, failure: Any
) -> None:
    engine, made = await world.add("a", vllm)
    engine.reply = lambda _: failure if isinstance(failure, float) else web.Response(status=500)
    loop = asyncio.get_running_loop()
    for _ in range(FAILURES_TO_OPEN):
        begun_s = loop.time()
        assert await world.tokenizers.text([made], "hello", True) is None
        assert loop.time() - begun_s < 0.5
    asked = len(engine.bodies)
    begun_s = loop.time()
    for _ in range(100):
        assert await world.tokenizers.text([made], "hello", True) is None
    assert loop.time() - begun_s < 0.05
    assert len(engine.bodies) == asked
    # In the background it is found to be well again.
    engine.reply = vllm
    await asyncio.sleep(0)
    world.wake.set()
    await world.settled()
    assert await world.tokenizers.text([made], "hello", True) is not None


async def test_an_engine_that_fails_only_with_real_prompts_is_left_alone_for_longer_each_time(
    world: World,
) -> None:
    engine, made = await world.add("a", vllm)
    engine.reply = lambda body: (
        vllm(body) if body.get("prompt") == "a" or "messages" in body else web.Response(status=500)
    )
    for _ in range(3):
        for _ in range(FAILURES_TO_OPEN):
            assert await world.tokenizers.text([made], "hello", True) is None
        await asyncio.sleep(0)
        world.wake.set()
        await world.settled()
        assert world.tokenizers.can(made, chat=False)
    assert world.waits == [1.0, 2.0, 4.0]


async def test_now_and_then_a_failure_is_forgiven(world: World) -> None:
    engine, made = await world.add("a", vllm)
    for _ in range(2 * FAILURES_TO_OPEN):
        engine.reply = lambda _: web.Response(status=500)
        assert await world.tokenizers.text([made], "hello", True) is None
        engine.reply = vllm
        assert await world.tokenizers.text([made], "hello", True) is not None


async def test_a_prompt_that_an_engine_refuses_is_no_failure_of_it(world: World) -> None:
    engine, made = await world.add("a", vllm)
    engine.reply = lambda _: web.Response(status=400)
    for _ in range(2 * FAILURES_TO_OPEN):
        assert await world.tokenizers.chat([made], CHAT) is None
    assert world.tokenizers.can(made, chat=True)


async def test_only_so_many_ask_at_once_and_the_rest_do_not_wait(world: World) -> None:
    engine, made = await world.add("a", vllm)
    engine.reply = lambda _: 0.1
    asking = [asyncio.ensure_future(world.tokenizers.text([made], "hello", True)) for _ in range(5)]
    got = await asyncio.gather(*asking)
    assert [one is not None for one in got] == [True, True, False, False, False]
    assert len(engine.bodies) == 2


async def test_an_instance_of_another_site_is_not_asked_even_if_one_here_has_its_name(world: World) -> None:
    engine, here = await world.add("a", vllm)
    asked = len(engine.bodies)
    elsewhere = msgspec.structs.replace(here, site="far")
    assert await world.tokenizers.text([elsewhere], "hello", True) is None
    assert len(engine.bodies) == asked


async def test_the_able_among_the_instances_are_asked(world: World) -> None:
    _, deaf = await world.add("a", NOT_OFFERED["not found"])
    _, able = await world.add("b", vllm)
    assert await world.tokenizers.text([deaf, able], "hello", True) is not None
