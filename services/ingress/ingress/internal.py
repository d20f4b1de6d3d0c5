"""Requests that this process asks for itself: a batch's lines, with the life cycle of any other request."""

from dataclasses import dataclass

from aiohttp import web
from opentelemetry.trace import SpanKind

from ingress.acceptance import accept
from ingress.errors import ApiError
from ingress.gateway import Gateway
from ingress.policy.asked import Asked
from ingress.policy.lifecycle import NO_INSTANCE_RETRY_AFTER_S
from ingress.validation import ApiRequest
from tokenfleet.contracts.policy import Tenant, Tier


@dataclass(frozen=True, slots=True)
class InternalAnswer:
    """What a client would have got."""

    status: int
    request_id: str
    """In the ledger; empty if it was refused before anything was asked, which leaves no trace there."""
    body: bytes
    retry_after_s: float | None = None


async def serve_internal(
    gateway: Gateway,
    tenant: Tenant,
    api: ApiRequest,
    *,
    service_tier: Tier = "flex",
    task: str | None = "batch",
    due_ns: int = 0,
    deadline_ns: int = 0,
    client_request_id: str | None = None,
) -> InternalAnswer:
    """Run a request that is not streamed to its end. Cancelling the call cancels the request.

    It does not count as one of its tenant's requests at once. Its tokens count, but half of the tenant's tokens per
    minute is left to the tenant's own clients.

    Args:
        gateway: through which it goes.
        tenant: whose it is.
        api: the request.
        service_tier: in force.
        task: the class it is to have; None: as its tier and length say.
        due_ns: Unix time by which its batch is to be done.
        deadline_ns: Unix time after which nobody waits for it; 0: by the policy's timeout.
        client_request_id: under which the ledger has it.

    Raises:
        ApiError: 400, it asks for a stream; 503, it cannot be accounted for now.
    """
    if api.stream:
        raise ApiError(400, "stream: an answer in a batch cannot be streamed.", param="stream")
    known = gateway.resolve(api.fields.model)
    if known is None:
        # Its model was known once: this process has not heard of it yet.
        message = f"No instance of {api.fields.model} is ready. Try again shortly."
        return _refused(
            ApiError(503, message, code="no_ready_instance", retry_after_s=NO_INSTANCE_RETRY_AFTER_S)
        )
    asked = Asked(service_tier=service_tier, task=task)
    attributes = {"gen_ai.operation.name": api.operation, "gen_ai.request.model": known[0]}
    span = gateway.observability.span(f"{api.operation} {known[0]}", {}, attributes, SpanKind.INTERNAL)
    with span as trace:
        driver, refusal = await accept(
            gateway,
            tenant,
            api,
            known,
            asked,
            gateway.now(),
            client=None,
            trace=trace,
            client_request_id=client_request_id,
            deadline_ns=deadline_ns,
            due_ns=due_ns,
        )
        if refusal is not None:
            error = ApiError(
                refusal.status, refusal.message, code=refusal.reason, retry_after_s=refusal.retry_after_s
            )
            return _refused(error)
        response = await driver.serve()
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    return InternalAnswer(response.status, driver.request_id, response.body, driver.retry_after_s)


def _refused(error: ApiError) -> InternalAnswer:
    return InternalAnswer(error.status, "", error.body(), error.retry_after_s)
