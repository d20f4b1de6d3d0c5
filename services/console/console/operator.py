"""What an operator changes while the fleet runs: tenants, keys and the policy, in NATS KV buckets."""

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from console.assignments import assign, reset
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.policy import Policy, Tenant, problems, tenant_problems
from tokenfleet.errors import PolicyError, UnavailableError
from tokenfleet.settings import Settings

T = TypeVar("T")

UPDATE_ATTEMPTS = 5
KEY_ID_LENGTH = 12
FIXED = {
    "tenant": "create another tenant",
    "key_hashes": "use rotate-key or revoke-key",
    "schema": "leave it",
}
"""What of a tenant is not a setting, and what to do instead."""


@asynccontextmanager
async def operator_bus(settings: Settings) -> AsyncIterator[Bus]:
    """A connection to NATS for one command.

    Raises:
        UnavailableError: NATS cannot be reached, or refuses the operator.
    """
    bus = await Bus.connect(settings, "tokenfleet-cli")
    try:
        yield bus
    finally:
        await bus.drain()


# -- keys


def new_key() -> str:
    """A fresh API key: 256 random bits."""
    return f"tf-{secrets.token_urlsafe(32)}"


def key_hash(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id(hashed: str) -> str:
    """By what an operator names a key without knowing it: the beginning of its hash."""
    return hashed[:KEY_ID_LENGTH]


# -- tenants


def changed_tenant(tenant: Tenant, assignments: Sequence[str], policy: Policy) -> Tenant:
    """The tenant with `KEY=VALUE` assignments applied, if that is valid under the policy.

    A tenant's objective for a class counts instead of the policy's, so the first change to one begins with a copy of it.

    Raises:
        PolicyError: an assignment is malformed, names no setting, has a wrong value or contradicts another one.
    """
    objectives = dict(tenant.objectives)
    for assignment in assignments:
        key = assignment.partition("=")[0]
        if instead := FIXED.get(key):
            raise PolicyError(f"{key} cannot be set: {instead}.")
        group, _, rest = key.partition(".")
        name, nested, _ = rest.partition(".")
        if group == "objectives" and nested and name in policy.objectives:
            objectives.setdefault(name, policy.objectives[name])
    changed = assign(msgspec.structs.replace(tenant, objectives=objectives), assignments)
    return _unless(tenant_problems(changed, policy), changed)


async def create_tenant(bus: Bus, tenant: Tenant) -> str:
    """Store a new tenant and return its key, which is kept nowhere else.

    Raises:
        PolicyError: it exists.
    """
    key = new_key()
    bucket = await bus.bucket(subjects.BUCKET_TENANTS)
    record = msgspec.structs.replace(tenant, key_hashes=(key_hash(key),))
    if await bucket.create(subjects.token(tenant.tenant), msgspec.json.encode(record)) is None:
        raise PolicyError(
            f"Tenant {tenant.tenant} exists. Choose another name, or change it with tenant set."
        )
    return key


async def add_key(bus: Bus, tenant: Tenant, key: str) -> Tenant:
    """Let `key` act for the tenant, which is created as given unless it exists; other fields then stay."""

    def change(stored: bytes | None) -> Tenant:
        present = _decode(stored, Tenant, f"Tenant {tenant.tenant}") if stored else tenant
        hashes = dict.fromkeys((*present.key_hashes, key_hash(key)))
        return msgspec.structs.replace(present, key_hashes=tuple(hashes))

    return await _change(bus, subjects.BUCKET_TENANTS, subjects.token(tenant.tenant), change)


async def set_tenant(bus: Bus, name: str, assignments: Sequence[str]) -> Tenant:
    """Change some settings of a tenant and return all of it.

    Raises:
        PolicyError: there is no such tenant, or as `changed_tenant`; nothing is changed.
    """
    policy = await live_policy(bus)
    return await _change_tenant(bus, name, lambda tenant: changed_tenant(tenant, assignments, policy))


async def rotate_key(bus: Bus, name: str, *, keep_old: bool) -> str:
    """Give a tenant a new key and return it, which is kept nowhere else; the old ones end unless they are kept.

    Raises:
        PolicyError: there is no such tenant.
    """
    key = new_key()

    def change(tenant: Tenant) -> Tenant:
        kept = tenant.key_hashes if keep_old else ()
        return msgspec.structs.replace(tenant, key_hashes=(*kept, key_hash(key)))

    await _change_tenant(bus, name, change)
    return key


async def revoke_key(bus: Bus, name: str, named: str) -> Tenant:
    """End one key, named by its id (`key_id`) or itself, and return the tenant.

    Raises:
        PolicyError: there is no such tenant, or it has no such key.
    """

    def change(tenant: Tenant) -> Tenant:
        left = tuple(each for each in tenant.key_hashes if named != key_id(each) and key_hash(named) != each)
        if len(left) == len(tenant.key_hashes):
            known = ", ".join(map(key_id, tenant.key_hashes)) or "none"
            raise PolicyError(f"Tenant {name} has no such key. The ids of its keys: {known}.")
        return msgspec.structs.replace(tenant, key_hashes=left)

    return await _change_tenant(bus, name, change)


async def delete_tenant(bus: Bus, name: str) -> None:
    """Take a tenant and its keys away; what it has running runs to its end.

    Raises:
        PolicyError: there is no such tenant.
    """
    await find_tenant(bus, name)
    await (await bus.bucket(subjects.BUCKET_TENANTS)).delete(subjects.token(name))


async def find_tenant(bus: Bus, name: str) -> Tenant:
    """One tenant.

    Raises:
        PolicyError: there is none of that name.
    """
    stored = await (await bus.bucket(subjects.BUCKET_TENANTS)).get(subjects.token(name)) if name else None
    if stored is None:
        known = [tenant.tenant for tenant in await tenants(bus)]
        near = get_close_matches(name, known, n=3)
        hint = f"Nearest: {', '.join(near)}." if near else "`tokenfleet tenant list` shows them."
        raise PolicyError(f"There is no tenant named {name!r}. {hint}")
    return _decode(stored[0], Tenant, f"Tenant {name}")


async def tenants(bus: Bus) -> list[Tenant]:
    """Every tenant, by name."""
    bucket = await bus.bucket(subjects.BUCKET_TENANTS)
    items = await bucket.items()
    return [_decode(value, Tenant, f"Tenant {subjects.name_of(key)}") for key, value in sorted(items.items())]


async def _change_tenant(bus: Bus, name: str, change: Callable[[Tenant], Tenant]) -> Tenant:
    await find_tenant(bus, name)

    def change_stored(stored: bytes | None) -> Tenant:
        if stored is None:
            raise PolicyError(f"Tenant {name} was deleted meanwhile.")
        return change(_decode(stored, Tenant, f"Tenant {name}"))

    return await _change(bus, subjects.BUCKET_TENANTS, subjects.token(name), change_stored)


# -- the policy


def apply(policy: Policy, assignments: Sequence[str]) -> Policy:
    """The policy with `KEY=VALUE` assignments applied; keys may be nested: `objectives.batch.e2e_s=60`.

    Raises:
        PolicyError: an assignment is malformed, names no setting, has a wrong value or contradicts another one.
    """
    changed = assign(policy, assignments)
    return _unless(problems(changed), changed)


async def live_policy(bus: Bus) -> Policy:
    """The policy in force; the defaults where nobody has set one."""
    bucket = await bus.bucket(subjects.BUCKET_POLICY)
    stored = await bucket.get(subjects.POLICY_KEY)
    return _decode(stored[0], Policy, "The live policy") if stored else Policy()


async def set_policy(bus: Bus, assignments: Sequence[str]) -> Policy:
    """Change some settings of the live policy and return all of it.

    Raises:
        PolicyError: as `apply`; nothing is changed.
    """
    return await change_policy(bus, lambda policy: apply(policy, assignments))


async def reset_policy(bus: Bus, keys: Sequence[str]) -> Policy:
    """Put some settings of the live policy, or all of them if none is named, back to the defaults.

    Raises:
        PolicyError: a key is no setting, or what is left contradicts the default; nothing is changed.
    """

    if not keys:  # also when what is stored cannot be read
        return await _change(bus, subjects.BUCKET_POLICY, subjects.POLICY_KEY, lambda _: Policy())

    def change(policy: Policy) -> Policy:
        changed = reset(policy, Policy(), keys)
        return _unless(problems(changed), changed)

    return await change_policy(bus, change)


async def change_policy(bus: Bus, change: Callable[[Policy], Policy]) -> Policy:
    """Change the live policy and return it; what `change` raises changes nothing."""

    def change_stored(stored: bytes | None) -> Policy:
        return change(_decode(stored, Policy, "The live policy") if stored else Policy())

    return await _change(bus, subjects.BUCKET_POLICY, subjects.POLICY_KEY, change_stored)


# -- both


def _unless(found: Sequence[str], value: T) -> T:
    if found:
        raise PolicyError(f"Nothing was changed. {' '.join(found)}")
    return value


def _decode(data: bytes, message_type: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(data, type=message_type)
    except msgspec.DecodeError as error:
        raise PolicyError(f"{what} cannot be read: {error}.") from error


async def _change(bus: Bus, bucket_name: str, key: str, change: Callable[[bytes | None], T]) -> T:
    """Compare and set, so that two operators never undo each other's change unseen."""
    bucket = await bus.bucket(bucket_name)
    for _ in range(UPDATE_ATTEMPTS):
        stored = await bucket.get(key)
        changed = change(stored[0] if stored else None)
        value = msgspec.json.encode(changed)
        if stored and await bucket.update(key, value, stored[1]) is not None:
            return changed
        if not stored and await bucket.create(key, value) is not None:
            return changed
    raise UnavailableError(f"{bucket_name}/{key} keeps changing under us; try again.")
