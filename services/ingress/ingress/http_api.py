"""The OpenAI-compatible HTTP API."""

import asyncio
import re
import uuid

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from opentelemetry.trace import SpanKind

from ingress import validation
from ingress.auth import RETRY_AFTER_S, authenticate, may_use
from ingress.driver import EngineRequest, RequestDriver
from ingress.errors import ApiError
from ingress.gateway import Gateway
from ingress.policy.happenings import Instant, TurnedAway
from ingress.policy.lifecycle import NO_INSTANCE_RETRY_AFTER_S, Lifecycle
from ingress.prompt import PromptAccount
from ingress.validation import ApiRequest, Operation
from tokenfleet.blocks import CHARS_PER_TOKEN
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec
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
        gateway, (model, version) = self._gateway, known
        records = gateway.ready_records(model, version)
        refusal = self._refusal(tenant, api.fields.model, bool(records))
        account = PromptAccount(len(api.body) // CHARS_PER_TOKEN, b"")
        if refusal is None:
            account = await gateway.prompts.account(api, records)
            gateway.metrics.tokenized(model, account.method)
            # Others may have come in while a long prompt was tokenized.
            refusal = self._refusal(tenant, api.fields.model, ready=True)
        timeout_s = gateway.policy.current.request_timeout_s / gateway.clock.time_scale
        spec = RequestSpec(
            model=model,
            version=version,
            entry_site=gateway.settings.site,
            ingress=gateway.settings.replica,
            input_tokens=account.input_tokens,
            max_output_tokens=api.max_output_tokens,
            block_size_tokens=records[0].block_size_tokens if records else 0,
            blocks=account.blocks,
            stream=api.stream,
            service_tier=api.fields.service_tier,
            deadline_ns=arrived.unix_ns + int(timeout_s * 1e9),
            client_request_id=validation.client_request_id(request.headers.get("x-request-id")),
        )
        life = Lifecycle(
            request_id=uuid.uuid4().hex,
            tenant=tenant.tenant,
            site=gateway.settings.site,
            request=spec,
            at=arrived,
            time_scale=gateway.clock.time_scale,
            input_exact=account.exact,
        )
        engine_request = EngineRequest(
            api.operation, api.engine_body(model), api.stream, strip_usage=not api.wants_usage
        )
        driver = RequestDriver(gateway, life, engine_request, request, trace)
        return await (driver.serve() if refusal is None else driver.turn_away(refusal))

    def _refusal(self, tenant: Tenant, model: str, ready: bool) -> TurnedAway | None:
        """Why ingress itself cannot take a valid request now, if it cannot."""
        gateway = self._gateway
        if gateway.stopping:
            return TurnedAway(503, "ingress_stopping", "This ingress is stopping.", RETRY_AFTER_S)
        if not ready:
            message = f"No instance of {model} is ready. Try again shortly."
            return TurnedAway(503, "no_ready_instance", message, NO_INSTANCE_RETRY_AFTER_S)
        crowded = gateway.concurrency.refusal(tenant)
        if crowded is not None:
            reason, message, status = crowded
            return TurnedAway(status, reason, message, RETRY_AFTER_S)
        return None

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
