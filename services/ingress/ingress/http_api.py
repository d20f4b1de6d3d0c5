"""The OpenAI-compatible HTTP API."""

import asyncio
import re

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from opentelemetry.trace import SpanKind

from ingress import validation
from ingress.acceptance import accept
from ingress.auth import authenticate, may_use
from ingress.errors import ApiError
from ingress.gateway import Gateway
from ingress.policy import asked
from ingress.policy.happenings import Instant
from ingress.validation import ApiRequest, Operation
from tokenfleet.contracts.policy import Tenant
from tokenfleet.service import prometheus_metrics

log = structlog.get_logger(__name__)

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_STATUS_TEXTS = {404: "There is no such endpoint.", 405: "This endpoint does not take that method."}


class HttpApi:
    """Handlers over one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def app(self) -> web.Application:
        # The limit of the body is enforced in `_read_body`, while reading.
        app = web.Application(middlewares=[self._openai_errors], client_max_size=0)
        app.router.add_post("/v1/chat/completions", self.chat_completions)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", prometheus_metrics)
        return app

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("chat", request)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("text_completion", request)

    async def models(self, request: web.Request) -> web.Response:
        """The models that instances are registered for and this tenant may use."""
        tenant = authenticate(self._gateway.tenants, request.headers.get("Authorization"))
        models = [
            {"id": model, "object": "model", "created": 0, "owned_by": "tokenfleet"}
            for model in self._gateway.fleet.models()
            if may_use(tenant, model)
        ]
        return web.json_response({"object": "list", "data": models})

    async def health(self, _: web.Request) -> web.Response:
        connected = self._gateway.bus.connected
        body = {
            "service": "ingress",
            "nats": "connected" if connected else "away",
            **self._gateway.health(),
        }
        return web.json_response(body, status=200 if connected else 503)

    # -- a request for generation

    async def _generate(self, operation: Operation, request: web.Request) -> web.StreamResponse:
        gateway = self._gateway
        tenant = authenticate(gateway.tenants, request.headers.get("Authorization"))
        body = await self._read_body(request)
        arrived = gateway.now()
        api = validation.parse(operation, body)
        known = gateway.resolve(api.fields.model)
        if known is None or not may_use(tenant, known[0]):
            raise ApiError(
                404,
                f"The model `{api.fields.model}` does not exist or you do not have access to it.",
                code="model_not_found",
                param="model",
            )
        traceparent = request.headers.get("traceparent", "")
        inbound = {"traceparent": traceparent} if _TRACEPARENT.fullmatch(traceparent) else {}
        attributes = {"gen_ai.operation.name": operation, "gen_ai.request.model": known[0]}
        with gateway.observability.span(
            f"{operation} {known[0]}", inbound, attributes, SpanKind.SERVER
        ) as trace:
            return await self._serve(request, tenant, api, known, arrived, trace)

    async def _serve(
        self,
        request: web.Request,
        tenant: Tenant,
        api: ApiRequest,
        known: tuple[str, str | None],
        arrived: Instant,
        trace: dict[str, str],
    ) -> web.StreamResponse:
        gateway = self._gateway
        classes = gateway.policy.current.objectives.keys()
        try:
            wanted = asked.read(request.headers, api.fields.service_tier, tenant.tier, classes)
        except asked.UnacceptableError as error:
            raise ApiError(400, str(error), param=error.name, code="invalid_value") from error
        driver, refusal = await accept(
            gateway,
            tenant,
            api,
            known,
            wanted,
            arrived,
            client=request,
            trace=trace,
            client_request_id=validation.client_request_id(request.headers.get("x-request-id")),
        )
        return await (driver.serve() if refusal is None else driver.turn_away(refusal))

    async def _read_body(self, request: web.Request) -> bytes:
        """The body, refused as soon as it is known to be too long.

        Raises:
            ApiError: 413 or 408.
        """
        limit = self._gateway.settings.ingress_max_body_bytes
        too_long = ApiError(413, f"The body exceeds {limit} bytes.", code="request_too_large")
        if request.content_length is not None and request.content_length > limit:
            raise too_long
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._gateway.settings.ingress_body_timeout_s):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > limit:
                        raise too_long
                    parts.append(part)
        except TimeoutError as error:
            raise ApiError(408, "The body did not arrive in time.", code="request_timeout") from error
        return b"".join(parts)

    # -- errors

    @web.middleware
    async def _openai_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            failure = error
        except web.HTTPException as error:
            failure = ApiError(error.status, _STATUS_TEXTS.get(error.status, error.reason))
        except ConnectionError:
            raise  # The client is gone; there is nobody to answer.
        except Exception:
            log.exception("handler failed", path=request.path)
            failure = ApiError(500, "Ingress failed; its log says why.")
        self._gateway.metrics.invalid(failure.status)
        return web.Response(
            body=failure.body(),
            status=failure.status,
            headers=failure.headers,
            content_type="application/json",
        )
