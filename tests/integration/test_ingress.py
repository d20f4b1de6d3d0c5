"""The ingress over real HTTP and real NATS, from the client's side and from the fleet's."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
from aiohttp import web
from conftest import NatsServer
from integration.ingress_world import (
    KEY,
    TENANT,
    IngressProcess,
    World,
    admit,
    drop_after_two_tokens,
    drop_connection,
    hang,
    ingress_process,
    refuse,
    stream_for_ever,
    text_events,
    usage_of,
    world,
)

from tokenfleet import subjects
from tokenfleet.contracts.policy import Policy
from tokenfleet.contracts.requests import Event, FirstToken, Retried, Submitted

pytestmark = pytest.mark.integration

PROMPT = "a prompt that is quite long " * 12
WORDS = ["one ", "two ", "three"]


@pytest.fixture(scope="module")
def ingress(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngressProcess]:
    process = ingress_process(nats_server.environment("ingress"), tmp_path_factory.mktemp("ingress"))
    process.start()
    yield process
    assert process.stop() == 0
    assert b"Traceback" not in process.log.read_bytes(), process.log.read_text()


@pytest.fixture
async def fleet(nats_server: NatsServer, ingress: IngressProcess) -> AsyncIterator[World]:
    async with world(nats_server.settings("operator"), ingress.url) as fleet:
        yield fleet


@pytest.fixture
async def client(ingress: IngressProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{ingress.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def completion(fleet: World, **more: Any) -> dict[str, Any]:
    return {"model": fleet.model, "prompt": PROMPT, "max_tokens": 9, **more}


async def post(fleet: World, body: Any, path: str = "/v1/completions", **more: Any) -> tuple[int, bytes, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with fleet.session.post(path, data=data, **more) as response:
        return response.status, await response.read(), response.headers


# -- answers


async def test_a_stream_reaches_the_client_byte_for_byte_without_the_usage_it_did_not_ask_for(
    fleet: World,
) -> None:
    engine = await fleet.add_engine("a")
    status, body, headers = await post(fleet, completion(fleet, stream=True, odd_field={"x": 1.50}))
    assert status == 200
    assert body == b"".join(text_events(WORDS, usage=False))
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-tokenfleet-instance"] == engine.name
    sent = json.loads(engine.bodies[0])
    assert sent["odd_field"] == {"x": 1.50}
    assert sent["stream_options"] == {"include_usage": True}
    assert "authorization" not in engine.headers[0], "a client's key is not the engine's business"
    ended = await fleet.outcome()
    assert headers["x-request-id"] == ended.request_id == engine.headers[0]["x-request-id"]
    assert (ended.outcome, ended.reason, ended.instance) == ("completed", "length", engine.name)
    assert (ended.input_tokens, ended.output_tokens, ended.reused_tokens) == (21, 3, 16)
    assert ended.tokens_exact
    assert ended.request_class == "interactive"
    assert ended.ttft_s is not None
    assert ended.tpot_s is not None
    assert 0 < ended.ttft_s <= ended.e2e_s < 5
    (fact,) = fleet.facts
    assert isinstance(fact, FirstToken)
    assert fact.ttft_s == ended.ttft_s


async def test_an_answer_that_is_not_streamed_is_the_engines_and_so_is_its_request(fleet: World) -> None:
    engine = await fleet.add_engine("a")
    body = json.dumps(completion(fleet, vendor=[1.0])).encode()
    status, answer, _ = await post(fleet, body, headers={"x-request-id": "mine-1"})
    assert status == 200
    assert json.loads(answer)["usage"] == usage_of(WORDS)
    assert engine.bodies == [body]
    ended = await fleet.outcome()
    assert (ended.outcome, ended.output_tokens, ended.ttft_s, ended.tpot_s) == ("completed", 3, None, None)
    assert ended.client_request_id == "mine-1"


async def test_deciders_are_told_lengths_and_hashes_and_never_the_text(fleet: World) -> None:
    await fleet.add_engine("a")
    await post(fleet, completion(fleet), headers={"x-tenant": "other", "x-priority": "9"})
    submitted = await fleet.submitted.get()
    assert submitted.tenant == TENANT.tenant
    assert submitted.request.input_tokens == len(PROMPT) // 4
    assert len(submitted.request.blocks) == 8 * (len(PROMPT) // 4 // 64)
    assert submitted.request.max_output_tokens == 9
    assert b"prompt that" not in msgspec.json.encode(submitted)


async def test_the_openai_client_works_streaming_and_not(fleet: World, client: openai.AsyncOpenAI) -> None:
    await fleet.add_engine("a")
    messages: Any = [{"role": "user", "content": "hello"}]
    whole = await client.chat.completions.create(model=fleet.model, messages=messages)
    assert whole.choices[0].message.content == "one two three"
    stream = await client.chat.completions.create(model=fleet.model, messages=messages, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
    assert all(chunk.usage is None for chunk in chunks)
    stream = await client.chat.completions.create(
        model=fleet.model, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    assert [chunk async for chunk in stream][-1].usage.completion_tokens == 3  # type: ignore[union-attr]
    assert fleet.model in [model.id async for model in client.models.list()]


async def test_a_pinned_version_goes_to_its_pool_under_the_name_the_engine_knows(fleet: World) -> None:
    engine = await fleet.add_engine("a", version="v2")
    status, _, _ = await post(fleet, completion(fleet) | {"model": f"{fleet.model}@v2"})
    assert status == 200
    assert json.loads(engine.bodies[0])["model"] == fleet.model
    assert (await fleet.submitted.get()).request.version == "v2"
    status, _, _ = await post(fleet, completion(fleet) | {"model": f"{fleet.model}@v3"})
    assert status == 404


async def test_metrics_use_the_names_of_the_genai_conventions(fleet: World) -> None:
    await fleet.add_engine("a")
    await post(fleet, completion(fleet, stream=True))
    await fleet.outcome()
    async with fleet.session.get("/metrics") as response:
        text = await response.text()
    for name in (
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "gen_ai_server_request_duration_seconds",
        "gen_ai_client_token_usage",
    ):
        assert f"{name}_count{{" in text
    assert f'gen_ai_request_model="{fleet.model}"' in text


# -- errors


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"prompt": {"no": "text"}}, 400, "prompt"),
        ({"model": "nobody-serves-this"}, 404, "model"),
    ],
)
async def test_a_bad_request_gets_a_clear_error_and_leaves_nothing_behind(
    fleet: World, change: dict[str, Any], status: int, param: str
) -> None:
    await fleet.add_engine("a")
    got, body, _ = await post(fleet, completion(fleet) | change)
    error = json.loads(body)["error"]
    assert got == status
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}
    health = await fleet.health()
    assert (health["in_flight"], health["journal_backlog"]) == (0, 0)
    assert fleet.submitted.empty()
    assert fleet.ended.empty()


async def test_truncated_json_is_a_400(fleet: World) -> None:
    status, body, _ = await post(fleet, json.dumps(completion(fleet)).encode()[:-9])
    assert status == 400
    assert json.loads(body)["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("authorization", ["Bearer wrong", ""])
async def test_without_a_key_there_is_a_401(fleet: World, authorization: str) -> None:
    status, body, _ = await post(fleet, completion(fleet), headers={"Authorization": authorization})
    assert status == 401
    assert json.loads(body)["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_50_mb_is_refused(fleet: World, chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * (1 << 20)

    data: Any = parts() if chunked else b"x" * (50 << 20)
    try:
        async with fleet.session.post("/v1/completions", data=data) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "request_too_large"
    except aiohttp.ClientOSError:
        pytest.fail("the client was cut off instead of being told")
    assert (await fleet.health())["in_flight"] == 0


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)]
)
async def test_unknown_endpoints_answer_in_the_same_form(
    fleet: World, method: str, path: str, status: int
) -> None:
    async with fleet.session.request(method, path) as response:
        assert response.status == status
        assert (await response.json())["error"]["message"]


async def test_the_openai_client_raises_its_own_errors(fleet: World, client: openai.AsyncOpenAI) -> None:
    await fleet.add_engine("a")
    pool = fleet.records[next(iter(fleet.records))].pool
    fleet.decide = lambda submitted: [refuse(submitted, pool)]
    with pytest.raises(openai.RateLimitError) as refused:
        await client.completions.create(model=fleet.model, prompt="x")
    assert refused.value.response.headers["retry-after"] == "3"
    assert refused.value.code == "admission_slack"
    ended = await fleet.outcome()
    assert (ended.outcome, ended.reason, ended.status) == ("rejected", "admission_slack", 429)
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="nobody-serves-this", prompt="x")
    with pytest.raises(openai.BadRequestError):
        await client.completions.create(model=fleet.model, prompt="x", max_tokens=-1)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").completions.create(model=fleet.model, prompt="x")


async def test_a_known_model_without_a_ready_instance_is_a_503_with_a_row(fleet: World) -> None:
    await fleet.add_engine("a", draining=True)
    status, body, headers = await post(fleet, completion(fleet))
    assert status == 503
    assert headers["Retry-After"] == "1"
    assert json.loads(body)["error"]["code"] == "no_ready_instance"
    ended = await fleet.outcome()
    assert (ended.outcome, ended.reason) == ("rejected", "no_ready_instance")


async def test_a_tenant_above_its_concurrency_is_a_429(fleet: World) -> None:
    engine = await fleet.add_engine("a", hang)
    tenants = await fleet.bus.bucket(subjects.BUCKET_TENANTS)
    limited = msgspec.structs.replace(TENANT, max_concurrency=1)
    await tenants.put(subjects.token(TENANT.tenant), msgspec.json.encode(limited))
    try:
        first = asyncio.create_task(post(fleet, completion(fleet)))
        await asyncio.wait_for(engine.begun.wait(), 3)
        status, body, headers = await post(fleet, completion(fleet))
        assert (status, headers["Retry-After"]) == (429, "1")
        assert json.loads(body)["error"]["code"] == "tenant_concurrency"
        first.cancel()
    finally:
        await tenants.put(subjects.token(TENANT.tenant), msgspec.json.encode(TENANT))


async def test_what_the_engine_blames_on_the_client_is_relayed(fleet: World) -> None:
    async def too_long(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "context"}}, status=400)

    engine = await fleet.add_engine("a", too_long)
    status, body, _ = await post(fleet, completion(fleet, stream=True))
    assert (status, json.loads(body)) == (400, {"error": {"message": "context"}})
    ended = await fleet.outcome()
    assert (ended.outcome, ended.reason, ended.status) == ("rejected", "engine_rejected", 400)
    assert len(engine.bodies) == 1


# -- a client that leaves


async def test_a_client_that_leaves_while_queued_is_cancelled(fleet: World) -> None:
    await fleet.add_engine("a")
    pool = fleet.records[next(iter(fleet.records))].pool
    fleet.decide = lambda submitted: [admit(submitted, pool)]
    asking = asyncio.create_task(post(fleet, completion(fleet)))
    await asyncio.wait_for(fleet.submitted.get(), 3)
    asking.cancel()
    ended = await fleet.outcome()
    assert (ended.outcome, ended.reason, ended.instance) == ("cancelled", "client_disconnected", None)
    assert ended.e2e_s < 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_closes_the_engines_connection(fleet: World, stream: bool) -> None:
    engine = await fleet.add_engine("a", hang)
    asking = asyncio.create_task(post(fleet, completion(fleet, stream=stream)))
    await asyncio.wait_for(engine.begun.wait(), 3)
    asking.cancel()
    await asyncio.wait_for(engine.cancelled.wait(), 2)
    ended = await fleet.outcome()
    assert (ended.outcome, ended.instance, ended.output_tokens) == ("cancelled", engine.name, 0)


async def test_a_client_that_leaves_a_stream_closes_the_engines_connection(
    fleet: World, client: openai.AsyncOpenAI
) -> None:
    engine = await fleet.add_engine("a", stream_for_ever, tokens_per_chunk=2)
    stream = await client.completions.create(model=fleet.model, prompt="x", stream=True)
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 5:
            break
    await stream.close()
    await asyncio.wait_for(engine.cancelled.wait(), 2)
    ended = await fleet.outcome()
    assert ended.outcome == "cancelled"
    assert ended.output_tokens >= 10, "an estimate: two tokens an event"
    assert not ended.tokens_exact


# -- engines and deciders that fail


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_before_a_token_is_replaced(fleet: World, stream: bool) -> None:
    dying = await fleet.add_engine("a", drop_connection)
    healthy = await fleet.add_engine("b")
    status, body, headers = await post(fleet, completion(fleet, stream=stream))
    assert status == 200
    assert b"three" in body
    assert (headers["x-tokenfleet-instance"], headers["x-tokenfleet-attempt"]) == (healthy.name, "2")
    ended = await fleet.outcome()
    assert (ended.outcome, ended.attempt, ended.instance) == ("completed", 2, healthy.name)
    assert ended.retried_input_tokens > 0
    retried = [fact for fact in fleet.facts if isinstance(fact, Retried)]
    assert [(fact.instance, fact.reason) for fact in retried] == [(dying.name, "engine_connection_lost")]


async def test_an_engine_that_answers_500_is_replaced(fleet: World) -> None:
    async def fail(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=500)

    await fleet.add_engine("a", fail)
    await fleet.add_engine("b", fail)
    status, body, _ = await post(fleet, completion(fleet))
    assert status == 502
    assert json.loads(body)["error"]["code"] == "engine_status_500"
    ended = await fleet.outcome()
    assert (ended.outcome, ended.reason, ended.attempt) == ("failed", "engine_status_500", 2)


async def test_an_engine_that_dies_after_a_token_ends_the_stream_with_an_error_event(fleet: World) -> None:
    await fleet.add_engine("a", drop_after_two_tokens)
    status, body, _ = await post(fleet, completion(fleet, stream=True))
    assert status == 200
    events = body.split(b"\n\n")
    assert b"".join(event + b"\n\n" for event in events[:2]) == b"".join(text_events(WORDS, usage=False)[:2])
    assert json.loads(events[2].removeprefix(b"data: "))["error"]["code"] == "engine_connection_lost"
    assert events[3:] == [b""]
    ended = await fleet.outcome()
    assert (ended.outcome, ended.reason, ended.output_tokens) == ("failed", "engine_connection_lost", 2)


async def test_the_openai_client_raises_when_a_stream_breaks(
    fleet: World, client: openai.AsyncOpenAI
) -> None:
    await fleet.add_engine("a", drop_after_two_tokens)
    stream = await client.completions.create(model=fleet.model, prompt="x", stream=True)
    with pytest.raises(openai.APIError, match="engine_connection_lost"):
        async for _ in stream:
            pass


async def test_without_deciders_requests_are_submitted_again_and_then_routed_alone(fleet: World) -> None:
    await fleet.add_engine("a")
    fleet.decide = None
    status, _, _ = await post(fleet, completion(fleet))
    assert status == 200
    first, second = await fleet.submitted.get(), await fleet.submitted.get()
    assert first == second
    ended = await fleet.outcome()
    assert (ended.outcome, ended.degraded, ended.admitted) == ("completed", True, False)


async def test_a_request_past_its_deadline_is_a_504_and_the_engine_is_told(
    nats_server: NatsServer, ingress: IngressProcess
) -> None:
    policy = Policy(request_timeout_s=0.5)
    async with world(nats_server.settings("operator"), ingress.url, policy) as fleet:
        engine = await fleet.add_engine("a", hang)
        streaming = await fleet.add_engine("b", stream_for_ever)
        status, body, _ = await post(fleet, completion(fleet))
        assert (status, json.loads(body)["error"]["code"]) == (504, "deadline")
        await asyncio.wait_for(engine.cancelled.wait(), 2)
        ended = await fleet.outcome()
        assert (ended.outcome, ended.reason, ended.status) == ("timed_out", "deadline", 504)
        del fleet.records[engine.name]
        status, body, _ = await post(fleet, completion(fleet, stream=True))
        assert status == 200
        assert json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"] == "deadline"
        await asyncio.wait_for(streaming.cancelled.wait(), 2)
        assert (await fleet.outcome()).outcome == "timed_out"


# -- an ingress that stops or dies


async def test_a_stopping_ingress_lets_streams_finish(nats_server: NatsServer, tmp_path: Path) -> None:
    process = ingress_process(nats_server.environment("ingress"), tmp_path)
    process.start()

    async def slowly(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in text_events(WORDS, usage=True):
            await response.write(event)
            await asyncio.sleep(0.2)
        return response

    async with world(nats_server.settings("operator"), process.url) as fleet:
        engine = await fleet.add_engine("a", slowly)
        asking = asyncio.create_task(post(fleet, completion(fleet, stream=True)))
        await asyncio.wait_for(engine.begun.wait(), 3)
        assert await asyncio.to_thread(process.stop) == 0
        status, body, _ = await asking
        assert (status, body) == (200, b"".join(text_events(WORDS, usage=False)))
        ended = await asyncio.wait_for(fleet.ended.get(), 2)
        assert ended.outcome == "completed"


async def test_an_ingress_that_must_stop_ends_its_streams_as_failed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    environment = nats_server.environment("ingress")
    process = ingress_process(environment, tmp_path, TOKENFLEET_INGRESS_DRAIN_TIMEOUT_S="0.3")
    process.start()
    async with world(nats_server.settings("operator"), process.url) as fleet:
        engine = await fleet.add_engine("a", stream_for_ever)
        asking = asyncio.create_task(post(fleet, completion(fleet, stream=True)))
        await asyncio.wait_for(engine.begun.wait(), 3)
        assert await asyncio.to_thread(process.stop) == 0
        _, body, _ = await asking
        assert (
            json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"] == "ingress_stopped"
        )
        ended = await asyncio.wait_for(fleet.ended.get(), 2)
        assert (ended.outcome, ended.reason) == ("failed", "ingress_stopped")


async def test_what_a_killed_ingress_had_in_flight_is_settled_when_it_starts_again(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    process = ingress_process(nats_server.environment("ingress"), tmp_path)
    process.start()
    async with world(nats_server.settings("operator"), process.url) as fleet:
        engine = await fleet.add_engine("a", hang)
        asking = asyncio.create_task(post(fleet, completion(fleet)))
        await asyncio.wait_for(engine.begun.wait(), 3)
        await asyncio.to_thread(process.stop, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            await asking
        await asyncio.wait_for(engine.cancelled.wait(), 2)
        submitted = await fleet.submitted.get()
        await asyncio.to_thread(process.start)
        ended = await fleet.outcome()
        assert (ended.request_id, ended.outcome, ended.reason) == (
            submitted.request_id,
            "failed",
            "ingress_restarted",
        )
        await asyncio.to_thread(process.stop)


async def test_every_fact_of_a_request_is_in_the_stream_once(fleet: World) -> None:
    await fleet.add_engine("a")
    decide = fleet.decide
    assert decide is not None
    answered: list[str] = []

    def only_the_second_time(submitted: Submitted) -> Sequence[Event]:
        answered.append(submitted.event_id)
        return decide(submitted) if len(answered) == 2 else ()

    fleet.decide = only_the_second_time
    await post(fleet, completion(fleet, stream=True))
    ended = await fleet.outcome()
    assert ended.outcome == "completed"
    assert not ended.degraded
    stored: list[str] = []

    async def keep(batch: Sequence[Any]) -> None:
        stored.extend(message.headers["Nats-Msg-Id"] for message in batch if "Nats-Msg-Id" in message.headers)

    pools = (fleet.model, ended.pool)
    filters = [subjects.request("local", pool, "*") for pool in pools]
    fleet.bus.spawn(fleet.bus.consume(subjects.STREAM_REQUESTS, f"test-{fleet.model}", filters, keep))
    async with asyncio.timeout(5):
        while ended.event_id not in stored:
            await asyncio.sleep(0.05)
    request_id = ended.request_id
    assert sorted(stored) == sorted(
        [f"{request_id}.1.submitted", f"{request_id}.1.first_token", f"{request_id}.end"]
    )
