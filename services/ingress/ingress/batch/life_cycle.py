"""Asks for a line by the ingress's own life cycle: journal, events and ledger as for every request."""

from ingress import validation
from ingress.batch.asking import LineAnswer
from ingress.gateway import Gateway
from ingress.internal import serve_internal
from ingress.validation import Operation
from tokenfleet.contracts.policy import Tenant


class LifeCycleAsk:
    """`Ask` over one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(
        self, tenant: Tenant, operation: Operation, body: bytes, *, due_ns: int, client_request_id: str
    ) -> LineAnswer:
        api = validation.parse(operation, body)
        answer = await serve_internal(
            self._gateway,
            tenant,
            api,
            due_ns=due_ns,
            deadline_ns=due_ns,
            client_request_id=client_request_id,
        )
        return LineAnswer(answer.status, answer.request_id, answer.body, answer.retry_after_s)
