"""The HTTP server: vLLM's OpenAI routes over one emulated engine."""

import os
import time
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from node_agent.emulated.driver import EngineDriver, Generation
from node_agent.emulated.metrics import engine_registry
from node_agent.emulated.protocol import ApiError, ChatBody, CompletionBody, parse
from node_agent.emulated.responses import DONE, ResponseWriter
from node_agent.emulated.text import answer_to
from tokenfleet.blocks import BlockHasher, TokenIds, unpack
from tokenfleet.engine.requests import ContextTooLongError, EngineRequest

MAX_BODY_BYTES = 16 * 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EngineServer:
    """The routes of one engine serving one model."""

    def __init__(self, driver: EngineDriver, model_name: str, version: str) -> None:
        self._driver = driver
        self._model_name = model_name
        self._version = version
        self._started = int(time.time())
        self._registry = engine_registry(driver, model_name)
        # Engines seed their hashes differently; nobody may rely on them being the fleet's.
        self._hasher = BlockHasher(os.urandom(32))

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_error_bodies])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._get_version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body, prompt = parse(await request.read(), chat=chat)
        if body.model not in (None, self._model_name):
            raise ApiError(404, f"The model `{body.model}` does not exist.", "model")
        response_id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        answer = answer_to(prompt)
        writer = ResponseWriter(
            chat=chat,
            response_id=response_id,
            model=self._model_name,
            created=int(time.time()),
            answer=answer,
        )
        generation = self._submit(response_id, body, prompt, answer.output_tokens)
        try:
            if body.stream:
                return await _stream(request, generation, writer, include_usage=body.include_usage)
            while not generation.finished:
                await generation.progress()
            return web.Response(body=writer.whole(generation), content_type="application/json")
        finally:
            if not generation.finished:
                self._driver.cancel(generation)

    def _submit(
        self, request_id: str, body: ChatBody | CompletionBody, prompt: TokenIds, drawn_tokens: int
    ) -> Generation:
        """Start generating: the traced or drawn length, up to the client's limit and the context's end."""
        model = self._driver.model
        limit_tokens = model.max_context_tokens - len(prompt)
        if body.limit_tokens is not None:
            limit_tokens = min(limit_tokens, body.limit_tokens)
        wanted_tokens = body.emulated_output_tokens or drawn_tokens
        request = EngineRequest(
            request_id=request_id,
            prompt_tokens=len(prompt),
            output_tokens=max(1, min(wanted_tokens, limit_tokens)),
            block_hashes=unpack(self._hasher.chain(prompt, model.block_size)),
        )
        reason = "length" if wanted_tokens > limit_tokens else "stop"
        try:
            return self._driver.submit(request, prompt, reason, stream=bool(body.stream))
        except ContextTooLongError as error:
            raise ApiError(400, str(error), "prompt") from error

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self._model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "tokenfleet-emulated",
            "root": self._model_name,
            "parent": None,
            "max_model_len": self._driver.model.max_context_tokens,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _get_version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self._version})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        if not self._driver.clear_cache():
            raise ApiError(409, "Requests are using the prefix cache; try again when none is running")
        return web.Response()


async def _stream(
    request: web.Request, generation: Generation, writer: ResponseWriter, *, include_usage: bool
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    while not generation.finished:
        await generation.progress()
        event = writer.chunk(generation)
        if generation.finished:
            event += (writer.usage_chunk(generation) if include_usage else b"") + DONE
        await response.write(event)
    await response.write_eof()
    return response


@web.middleware
async def _error_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        failure = error
    except web.HTTPException as error:
        failure = ApiError(error.status, error.reason)
    return web.Response(status=failure.status, body=failure.body(), content_type="application/json")
