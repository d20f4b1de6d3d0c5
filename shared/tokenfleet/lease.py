"""One writer per pool: a lease in a KV bucket, hot standbys behind it.

The holder rewrites its entry every `RENEW_S` with compare-and-set. A standby that has seen no rewrite for
`TAKEOVER_S` of its own clock replaces it. A holder that could not renew for `FENCE_S` stops deciding before
anyone may take over, so two never decide at once, without comparing clocks between machines.
"""

import asyncio
from dataclasses import dataclass

import msgspec
import structlog
from nats.errors import Error as NatsError

from tokenfleet import subjects
from tokenfleet.bus import Bucket, Bus
from tokenfleet.clock import Clock

log = structlog.get_logger(__name__)

RENEW_S = 0.2
FENCE_S = 0.8
TAKEOVER_S = 1.2
"""A standby sees a rewrite up to `RENEW_S` late and looks again up to `RENEW_S` late: 1.6 s at most after a death."""


class LeaseValue(msgspec.Struct, frozen=True):
    """What stands in the bucket; `count` changes with each renewal."""

    holder: str
    count: int


@dataclass(slots=True)
class _Lease:
    seen: bytes | None = None
    seen_changed_s: float = 0.0
    revision: int | None = None
    renewed_s: float = 0.0
    count: int = 0


class Leases:
    """The leases of one kind (tokenpilot, slomax) that one process holds or waits for."""

    def __init__(self, bus: Bus, clock: Clock, service: str, site: str, holder: str) -> None:
        self._bus = bus
        self._clock = clock
        self._service = service
        self._site = site
        self._holder = holder
        self._bucket: Bucket | None = None
        self._leases: dict[str, _Lease] = {}
        self._released = False

    def holds(self, pool: str) -> bool:
        """Whether this process is the one that decides for a pool right now."""
        lease = self._leases.get(pool)
        if lease is None or lease.revision is None:
            return False
        return self._clock.wall_s() - lease.renewed_s < FENCE_S

    def held(self) -> list[str]:
        """The pools this process decides for."""
        return sorted(pool for pool in self._leases if self.holds(pool))

    async def keep(self, pools: list[str]) -> None:
        """Renew or try to take the lease of each pool; call every `RENEW_S`. Does nothing after `release`."""
        if self._released:
            return
        if self._bucket is None:
            self._bucket = await self._bus.bucket(subjects.BUCKET_LEASES)
        for pool in self._leases.keys() - set(pools):
            del self._leases[pool]
        await asyncio.gather(*(self._keep(self._bucket, pool) for pool in pools))

    async def _keep(self, bucket: Bucket, pool: str) -> None:
        lease = self._leases.setdefault(pool, _Lease(seen_changed_s=self._clock.wall_s()))
        try:
            async with asyncio.timeout(FENCE_S / 2):
                if lease.revision is not None:
                    await self._renew(bucket, pool, lease)
                else:
                    await self._try_to_take(bucket, pool, lease)
        except (NatsError, TimeoutError) as error:
            log.warning("lease not kept", pool=pool, error=repr(error))

    def _value(self, lease: _Lease) -> bytes:
        lease.count += 1
        return msgspec.json.encode(LeaseValue(self._holder, lease.count))

    async def _renew(self, bucket: Bucket, pool: str, lease: _Lease) -> None:
        assert lease.revision is not None
        asked_s = self._clock.wall_s()
        key = self._key(pool)
        lease.revision = await bucket.update(key, self._value(lease), lease.revision)
        if lease.revision is None and (stored := await self._own_revision(bucket, pool)) is not None:
            lease.revision = await bucket.update(key, self._value(lease), stored)
        if lease.revision is None:
            log.warning("lease lost", service=self._service, pool=pool)
            lease.seen, lease.seen_changed_s = None, asked_s
        else:
            lease.renewed_s = asked_s

    async def _own_revision(self, bucket: Bucket, pool: str) -> int | None:
        """The entry's revision if this process wrote it: a renewal whose answer came too late."""
        current = await bucket.get(self._key(pool))
        if current is None or msgspec.json.decode(current[0], type=LeaseValue).holder != self._holder:
            return None
        return current[1]

    async def _try_to_take(self, bucket: Bucket, pool: str, lease: _Lease) -> None:
        asked_s = self._clock.wall_s()
        current = await bucket.get(self._key(pool))
        if current is None:
            lease.revision = await bucket.create(self._key(pool), self._value(lease))
        else:
            value, revision = current
            if value != lease.seen:
                # Counted from when it was seen, not asked for: a slow answer must not shorten the wait.
                lease.seen, lease.seen_changed_s = value, self._clock.wall_s()
                return
            if asked_s - lease.seen_changed_s < TAKEOVER_S:
                return
            lease.revision = await bucket.update(self._key(pool), self._value(lease), revision)
        if lease.revision is not None:
            lease.renewed_s = asked_s
            log.info("lease taken", service=self._service, pool=pool)

    async def release(self) -> None:
        """Give up every lease for good, so that a standby need not wait."""
        self._released = True
        for pool in self.held():
            lease = self._leases[pool]
            lease.revision = None
            if self._bucket is not None:
                await self._bucket.delete(self._key(pool))

    def _key(self, pool: str) -> str:
        return subjects.lease_key(self._service, self._site, pool)
