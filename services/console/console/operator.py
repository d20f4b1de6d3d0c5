"""What an operator changes while the fleet runs: tenants, keys and the policy, in NATS KV buckets."""

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec

from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.policy import ClassObjective, Policy, Tenant
from tokenfleet.errors import PolicyError, UnavailableError
from tokenfleet.settings import Settings

T = TypeVar("T")

UPDATE_ATTEMPTS = 5


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


def new_key() -> str:
    """A fresh API key: 256 random bits."""
    return f"tf-{secrets.token_urlsafe(32)}"


def key_hash(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


async def add_key(bus: Bus, tenant: Tenant, key: str) -> Tenant:
    """Let `key` act for the tenant, which is created as given unless it exists; other fields then stay."""

    def change(stored: bytes | None) -> Tenant:
        present = _decode(stored, Tenant, f"Tenant {tenant.tenant}") if stored else tenant
        hashes = dict.fromkeys((*present.key_hashes, key_hash(key)))
        return msgspec.structs.replace(present, key_hashes=tuple(hashes))

    return await _change(bus, subjects.BUCKET_TENANTS, subjects.token(tenant.tenant), change)


async def create_tenant(bus: Bus, tenant: Tenant) -> str:
    """Store a new tenant and return its key, which is kept nowhere else.

    Raises:
        PolicyError: it exists.
    """
    key = new_key()
    bucket = await bus.bucket(subjects.BUCKET_TENANTS)
    record = msgspec.structs.replace(tenant, key_hashes=(key_hash(key),))
    if await bucket.create(subjects.token(tenant.tenant), msgspec.json.encode(record)) is None:
        raise PolicyError(f"Tenant {tenant.tenant} exists. Choose another name.")
    return key


async def tenants(bus: Bus) -> list[Tenant]:
    """Every tenant, by name."""
    bucket = await bus.bucket(subjects.BUCKET_TENANTS)
    items = await bucket.items()
    return [_decode(value, Tenant, f"Tenant {subjects.name_of(key)}") for key, value in sorted(items.items())]


async def live_policy(bus: Bus) -> Policy:
    """The policy in force; the defaults where nobody has set one."""
    bucket = await bus.bucket(subjects.BUCKET_POLICY)
    stored = await bucket.get(subjects.POLICY_KEY)
    return _decode(stored[0], Policy, "The live policy") if stored else Policy()


async def set_policy(bus: Bus, assignments: Sequence[str]) -> Policy:
    """Change some values of the live policy and return all of it.

    Raises:
        PolicyError: an assignment is malformed, names no setting or has a wrong value; nothing is changed.
    """

    def change(stored: bytes | None) -> Policy:
        return apply(_decode(stored, Policy, "The live policy") if stored else Policy(), assignments)

    return await _change(bus, subjects.BUCKET_POLICY, subjects.POLICY_KEY, change)


def apply(policy: Policy, assignments: Sequence[str]) -> Policy:
    """The policy with `KEY=VALUE` assignments applied; keys may be nested: `objectives.batch.e2e_s=60`.

    Raises:
        PolicyError: as `set_policy`.
    """
    for assignment in assignments:
        policy = _apply_one(policy, assignment)
    return policy


def _apply_one(policy: Policy, assignment: str) -> Policy:
    key, separator, text = assignment.partition("=")
    if not separator or not key:
        raise PolicyError(f"{assignment!r} is not an assignment; write KEY=VALUE, as in routing=round_robin.")
    content = msgspec.to_builtins(policy)
    _assign(content, key.split("."), _value(text), key)
    try:
        changed = msgspec.convert(content, Policy)
    except msgspec.ValidationError as error:
        raise PolicyError(f"{assignment} would not be valid: {error}.") from error
    # Unknown keys decode silently (an older reader must accept a newer policy), so look for them here.
    _refuse_unknown("", content, Policy)
    for name, objective in content["objectives"].items():
        _refuse_unknown(f"objectives.{name}.", objective, ClassObjective)
    return changed


def _assign(content: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    *parents, last = path
    for part in parents:
        inner = content.setdefault(part, {})
        if not isinstance(inner, dict):
            raise PolicyError(f"{key}: {part} is a single value and has no parts.")
        content = cast(dict[str, Any], inner)
    content[last] = value


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _refuse_unknown(prefix: str, given: Mapping[str, Any], struct: type[msgspec.Struct]) -> None:
    for key in given.keys() - set(struct.__struct_fields__):
        known = ", ".join(f"{prefix}{field}" for field in struct.__struct_fields__)
        raise PolicyError(f"There is no setting named {prefix}{key}. Known: {known}.")


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
