"""How a line is answered: as a request of its tenant, through the life cycle of any other request."""

from dataclasses import dataclass
from typing import Protocol

from ingress.validation import Operation
from tokenfleet.contracts.policy import Tenant


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What a client would have got."""

    status: int
    request_id: str
    body: bytes
    retry_after_s: float | None = None


class Ask(Protocol):
    """Cancelling the call cancels the request at the engine."""

    async def __call__(
        self, tenant: Tenant, operation: Operation, body: bytes, *, due_ns: int, client_request_id: str
    ) -> LineAnswer:
        """Answer one line.

        Args:
            tenant: whose batch it is.
            operation: what its url stands for.
            body: of the request, as the client wrote it.
            due_ns: Unix time of the batch's deadline.
            client_request_id: under which the ledger has it.
        """
        ...
