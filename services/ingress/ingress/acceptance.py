"""What becomes of a valid request: described for the deciders and driven, or turned away at the door."""

import uuid
from typing import Any

from aiohttp import web

from ingress.auth import RETRY_AFTER_S
from ingress.driver import EngineRequest, RequestDriver
from ingress.gateway import Gateway
from ingress.policy.asked import Asked
from ingress.policy.happenings import Instant, TurnedAway
from ingress.policy.lifecycle import NO_INSTANCE_RETRY_AFTER_S, Lifecycle
from ingress.policy.token_rate import Reservation
from ingress.prompt import PromptAccount
from ingress.validation import ApiRequest
from tokenfleet.blocks import CHARS_PER_TOKEN
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.residency import narrowed, out_of_bounds

LEFT_TO_CLIENTS = 0.5
"""Of a tenant's tokens per minute, what its own batches never take from its clients."""


async def accept(
    gateway: Gateway,
    tenant: Tenant,
    api: ApiRequest,
    known: tuple[str, str | None],
    asked: Asked,
    arrived: Instant,
    *,
    client: web.Request | None,
    trace: dict[str, str],
    client_request_id: str | None,
    deadline_ns: int = 0,
    due_ns: int = 0,
) -> tuple[RequestDriver, TurnedAway | None]:
    """A request's driver, and why it must be turned away if it must. Nothing is asked yet.

    To serve it without waiting for anything else in between keeps to the limits that were checked.

    Args:
        gateway: through which it goes.
        tenant: whose it is.
        api: the request.
        known: its model and pinned version.
        asked: what its client asked for besides.
        arrived: when its client sent it.
        client: who waits for the answer; None: this process itself.
        trace: headers that carry the trace on.
        client_request_id: the client's own id for it.
        deadline_ns: Unix time after which nobody waits for it; 0: by the policy's timeout.
        due_ns: its batch's deadline.
    """
    model, version = known
    adapter = gateway.adapter(api.fields.model)
    internal = client is None
    regions = narrowed(tenant.regions, asked.regions)

    def may_use(record: InstanceRecord) -> bool:
        return out_of_bounds(tenant.sites, regions, record.site, record.region) is None

    records = gateway.ready_records(model, version, may_use)
    # Whether a site that it may use has any is FleetMind's to say, with the reason.
    ready = bool(records) or bool(gateway.ready_records(model, version))
    refusal = _refusal(gateway, tenant, api.fields.model, ready=ready, internal=internal)
    account = PromptAccount(len(api.body) // CHARS_PER_TOKEN, b"")
    reservation: Reservation | None = None
    if refusal is None and records:
        account = await gateway.prompts.account(api, records)
        gateway.metrics.tokenized(model, account.method)
        # Others may have come in while a long prompt was tokenized.
        refusal = _refusal(gateway, tenant, api.fields.model, ready=True, internal=internal)
    if refusal is None:
        taken = _reserve(gateway, tenant, account.input_tokens, api.max_output_tokens, internal=internal)
        reservation, refusal = (None, taken) if isinstance(taken, TurnedAway) else (taken, None)
    timeout_ns = int(gateway.policy.current.request_timeout_s / gateway.clock.time_scale * 1e9)
    spec = RequestSpec(
        model=model,
        version=version,
        adapter=adapter,
        entry_site=gateway.settings.site,
        sites=tenant.sites,
        regions=regions,
        ingress=gateway.settings.replica,
        input_tokens=account.input_tokens,
        max_output_tokens=api.max_output_tokens,
        block_size_tokens=records[0].block_size_tokens if records else 0,
        blocks=account.blocks if adapter is None else b"",  # these are the plain model's
        stream=api.stream,
        deadline_ns=deadline_ns or arrived.unix_ns + timeout_ns,
        due_ns=due_ns,
        client_request_id=client_request_id,
        **_fields(asked),
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
    body = api.engine_body(adapter or model)
    request = EngineRequest(api.operation, body, api.stream, strip_usage=not api.wants_usage)
    return RequestDriver(gateway, life, request, client, trace, reservation), refusal


def _fields(asked: Asked) -> dict[str, Any]:
    return {
        "service_tier": asked.service_tier,
        "task": asked.task,
        "objective": asked.objective,
        "fairness_id": asked.fairness_id,
        "queue_ttl_s": asked.queue_ttl_s,
    }


def _refusal(
    gateway: Gateway, tenant: Tenant, model: str, *, ready: bool, internal: bool
) -> TurnedAway | None:
    """Why ingress itself cannot take a valid request now, if it cannot."""
    if gateway.stopping:
        return TurnedAway(503, "ingress_stopping", "This ingress is stopping.", RETRY_AFTER_S)
    if not ready:
        message = f"No instance of {model} is ready. Try again shortly."
        return TurnedAway(503, "no_ready_instance", message, NO_INSTANCE_RETRY_AFTER_S)
    crowded = gateway.concurrency.refusal(None if internal else tenant)
    if crowded is not None:
        reason, message, status = crowded
        return TurnedAway(status, reason, message, RETRY_AFTER_S)
    return None


def _reserve(
    gateway: Gateway, tenant: Tenant, input_tokens: int, max_output_tokens: int, *, internal: bool
) -> Reservation | TurnedAway | None:
    """The tokens of a tenant that has a rate, or why there are none."""
    per_minute = tenant.tokens_per_minute
    if per_minute is None:
        return None
    taken = gateway.token_rates.reserve(
        tenant.tenant,
        per_minute,
        input_tokens,
        max_output_tokens,
        gateway.clock.now_s(),
        leave_share=LEFT_TO_CLIENTS if internal else 0.0,
    )
    if isinstance(taken, Reservation):
        return taken
    if taken.retry_after_s is None:
        message = (
            f"The prompt has {input_tokens} tokens; tenant {tenant.tenant} may use {per_minute} a minute."
        )
        return TurnedAway(400, "prompt_exceeds_token_rate", message)
    message = f"Tenant {tenant.tenant} has used its {per_minute} tokens per minute."
    # Clients count wall seconds.
    wait_s = taken.retry_after_s / gateway.clock.time_scale
    return TurnedAway(429, "tenant_token_rate", message, wait_s)
