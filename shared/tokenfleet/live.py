"""Live configuration and fleet state, kept current from NATS for the pure views that use them."""

from collections.abc import Callable

import structlog

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.bus.codec import decode
from tokenfleet.clock import Clock
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.contracts.latency import PoolLatency
from tokenfleet.contracts.policy import Policy, Tenant, problems
from tokenfleet.errors import ContractError
from tokenfleet.fleet_view import FleetView

log = structlog.get_logger(__name__)

OLDEST_READING_S = 10.0
"""A reading that seems older comes from another clock."""

OnState = Callable[[InstanceState], None]
OnRecord = Callable[[str, InstanceRecord | None], None]


async def watch_fleet(
    bus: Bus,
    site: str,
    clock: Clock,
    view: FleetView,
    *,
    on_state: OnState | None = None,
    on_record: OnRecord | None = None,
) -> None:
    """Keep `view` current from the registry and the instances' readings; hooks run after each is applied.

    A restarted engine (a new generation) is first reported as gone: what the old process cached and ran went with it.
    """
    prefix = f"{subjects.token(site)}."

    def record_changed(key: str, value: bytes | None) -> None:
        if not key.startswith(prefix):
            return
        try:
            record = decode(value, InstanceRecord) if value is not None else None
        except ContractError as error:
            log.warning("registry entry ignored", key=key, error=str(error))
            return
        name = subjects.name_of(key[len(prefix) :])
        known = view.get(name)
        view.apply_record(key, record, clock.wall_s())
        if on_record is None:
            return
        if known is not None and record is not None and known.record.generation != record.generation:
            on_record(name, None)
        on_record(name, record)

    async def state_arrived(state: InstanceState, _: Delivery) -> None:
        if view.apply_state(state, clock.wall_s()) and on_state:
            on_state(state)

    await bus.subscribe(
        subjects.nodes(site, "state"), InstanceState, state_arrived, codec="msgpack", ordered=True
    )
    await (await bus.bucket(subjects.BUCKET_INSTANCES)).watch(record_changed)


class LivePolicy:
    """The policy in force. A value that does not validate is refused and the last good one stays."""

    def __init__(self) -> None:
        self.current = Policy()

    async def watch(self, bus: Bus) -> None:
        await (await bus.bucket(subjects.BUCKET_POLICY)).watch(self._changed)

    def _changed(self, key: str, value: bytes | None) -> None:
        if key != subjects.POLICY_KEY:
            return
        try:
            policy = decode(value, Policy) if value is not None else Policy()
            if found := problems(policy):
                raise ContractError(" ".join(found))
            self.current = policy
        except ContractError as error:
            log.error("policy refused; keeping the one in force", error=str(error))


class LiveTenants:
    """The tenants, by name and by key hash."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tenant] = {}
        self.by_key_hash: dict[str, Tenant] = {}

    async def watch(self, bus: Bus) -> None:
        await (await bus.bucket(subjects.BUCKET_TENANTS)).watch(self._changed)

    def _changed(self, key: str, value: bytes | None) -> None:
        name = subjects.name_of(key)
        try:
            tenant = decode(value, Tenant) if value is not None else None
        except ContractError as error:
            log.error("tenant record refused; keeping the one in force", tenant=name, error=str(error))
            return
        previous = self.by_name.pop(name, None)
        for key_hash in previous.key_hashes if previous else ():
            self.by_key_hash.pop(key_hash, None)
        if tenant is not None:
            self.by_name[name] = tenant
            self.by_key_hash.update(dict.fromkeys(tenant.key_hashes, tenant))


async def watch_latency(bus: Bus, site: str, on_learned: Callable[[PoolLatency], None]) -> None:
    """What TokenPilot has learned of each pool of a site, now and whenever it has learned more."""

    def changed(key: str, value: bytes | None) -> None:
        if value is None or not key.startswith(f"{subjects.token(site)}."):
            return
        try:
            on_learned(decode(value, PoolLatency))
        except (ContractError, ValueError) as error:
            log.warning("learned latency ignored", key=key, error=str(error))

    await (await bus.bucket(subjects.BUCKET_LATENCY)).watch(changed)


def taken_s(state: InstanceState, clock: Clock) -> float:
    """When a reading was taken, on this process's engine clock: at the latest now, whatever other clocks say."""
    age_s = (clock.unix_ns() - state.time_ns) / 1e9
    return clock.now_s() - min(max(age_s, 0.0), OLDEST_READING_S) * clock.time_scale
