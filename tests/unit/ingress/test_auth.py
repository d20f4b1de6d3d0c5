"""Only a key says who asks."""

import hashlib

import msgspec
import pytest

from ingress.auth import Concurrency, authenticate, may_use
from ingress.errors import ApiError
from tokenfleet.contracts.policy import Tenant
from tokenfleet.live import LiveTenants

TENANT = Tenant(tenant="acme", key_hashes=(hashlib.sha256(b"sk-1").hexdigest(),), max_concurrency=2)


@pytest.fixture
def tenants() -> LiveTenants:
    live = LiveTenants()
    live._changed("acme", msgspec.json.encode(TENANT))
    return live


def test_a_known_key_names_its_tenant(tenants: LiveTenants) -> None:
    assert authenticate(tenants, "Bearer sk-1") == TENANT
    assert authenticate(tenants, "bearer  sk-1 ") == TENANT


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic sk-1", "Bearer sk-2", "sk-1", "Bearer \udcff"]
)
def test_anything_else_is_a_401(tenants: LiveTenants, header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        authenticate(tenants, header)
    assert caught.value.status == 401


def test_a_tenant_sees_only_its_models() -> None:
    assert may_use(TENANT, "any")
    limited = msgspec.structs.replace(TENANT, models=("a",))
    assert may_use(limited, "a")
    assert not may_use(limited, "b")


def test_concurrency_is_limited_per_tenant_and_in_all() -> None:
    running = Concurrency(limit=3)
    running.enter("acme")
    assert running.refusal(TENANT) is None
    running.enter("acme")
    assert running.refusal(TENANT) == (
        "tenant_concurrency",
        "Tenant acme already has 2 requests in flight, its limit.",
        429,
    )
    running.enter("other")
    reason, _, status = running.refusal(msgspec.structs.replace(TENANT, tenant="third")) or ("", "", 0)
    assert (reason, status) == ("ingress_overloaded", 429), "there is capacity, but others have it"
    running.leave("acme")
    assert running.refusal(TENANT) is None


def test_this_process_own_requests_count_in_all_and_for_no_tenant() -> None:
    running = Concurrency(limit=2)
    running.enter(None)
    running.enter(None)
    assert running.refusal(msgspec.structs.replace(TENANT, max_concurrency=1)) is not None
    assert running.refusal(None) is not None
    running.leave(None)
    assert running.refusal(msgspec.structs.replace(TENANT, max_concurrency=1)) is None
    running.leave(None)
    assert running.total == 0
