"""Who is asking: API keys, and what a tenant may have at once."""

import hashlib
from collections import Counter

from ingress.errors import ApiError
from tokenfleet.contracts.policy import Tenant
from tokenfleet.live import LiveTenants

RETRY_AFTER_S = 1.0


def authenticate(tenants: LiveTenants, authorization: str | None) -> Tenant:
    """The tenant whose key the `Authorization` header carries.

    Only the key says who asks: headers that claim a tenant are ignored. The
    look-up is by SHA-256 of a 256-bit random secret, so its timing tells nothing about a stored key.

    Raises:
        ApiError: 401, no key or an unknown one.
    """
    scheme, _, key = (authorization or "").partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        raise ApiError(401, "No API key: send it as `Authorization: Bearer KEY`.", code="invalid_api_key")
    tenant = tenants.by_key_hash.get(hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest())
    if tenant is None:
        raise ApiError(401, "Incorrect API key.", code="invalid_api_key")
    return tenant


def may_use(tenant: Tenant, model: str) -> bool:
    """Whether a tenant may use a model; one it may not use does not exist for it."""
    return tenant.models is None or model in tenant.models


class Concurrency:
    """Requests in flight: of each tenant, and in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_tenant: Counter[str] = Counter()
        self.total = 0

    def refusal(self, tenant: Tenant | None) -> tuple[str, str, int] | None:
        """`(reason, message, status)` when one more request is too many; None: one of this process's own.

        429 in either case: there is capacity, but others have it.
        """
        if self.total >= self._limit:
            return "ingress_overloaded", f"This ingress already serves {self.total} requests.", 429
        if tenant is None:
            return None
        running = self._by_tenant[tenant.tenant]
        if running >= tenant.max_concurrency:
            message = f"Tenant {tenant.tenant} already has {running} requests in flight, its limit."
            return "tenant_concurrency", message, 429
        return None

    def enter(self, tenant: str | None) -> None:
        """One more; None: of this process's own, which counts for no tenant."""
        self.total += 1
        if tenant is not None:
            self._by_tenant[tenant] += 1

    def leave(self, tenant: str | None) -> None:
        self.total -= 1
        if tenant is None:
            return
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
