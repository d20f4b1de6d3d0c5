"""Keeps this node's instance records in the KV bucket that the whole fleet watches.

Records expire by themselves a few seconds after their agent has gone, so each is put again in time. The
bucket lives in memory: after a restart of NATS it is created anew and everything is put again.
"""

import asyncio
from collections.abc import Mapping

import msgspec
import structlog
from nats.errors import Error as NatsError

from tokenfleet import subjects
from tokenfleet.bus import Bucket, Bus
from tokenfleet.clock import Clock
from tokenfleet.contracts.fleet import InstanceRecord
from tokenfleet.errors import UnavailableError

log = structlog.get_logger(__name__)

REFRESH_S = 3.0
CLOSE_TIMEOUT_S = 2.0


class Registry:
    """Brings the bucket to the state it is given."""

    def __init__(self, bus: Bus, clock: Clock, site: str) -> None:
        self._bus = bus
        self._clock = clock
        self._site = site
        self._bucket: Bucket | None = None
        self._put: dict[str, tuple[InstanceRecord, float]] = {}
        self._lock = asyncio.Lock()
        self._closed = False

    async def reconcile(self, wanted: Mapping[str, InstanceRecord]) -> None:
        """Put records that are new, changed or due for refreshing, and delete those not wanted any more."""
        async with self._lock:
            if self._closed:
                return
            try:
                for instance in self._put.keys() - wanted.keys():
                    await self._delete(instance)
                for record in wanted.values():
                    await self._refresh(record)
            except (NatsError, TimeoutError, UnavailableError) as error:
                self._bucket = None
                log.warning("registry not updated; trying again", error=repr(error))

    def forget(self) -> None:
        """The bucket may have been lost: put everything again."""
        self._bucket = None
        self._put = {name: (record, float("-inf")) for name, (record, _) in self._put.items()}

    async def close(self) -> None:
        """Delete this node's records for good. Those that cannot be deleted expire."""
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._lock:
                for instance in list(self._put):
                    await self._delete(instance)
        except (NatsError, TimeoutError, UnavailableError) as error:
            log.warning("records left to expire", error=repr(error))

    async def _refresh(self, record: InstanceRecord) -> None:
        known, put_s = self._put.get(record.instance, (None, float("-inf")))
        now_s = self._clock.wall_s()
        if record == known and now_s - put_s < REFRESH_S:
            return
        bucket = await self._open()
        await bucket.put(subjects.instance_key(self._site, record.instance), msgspec.json.encode(record))
        if known is None:
            log.info("engine listed", instance=record.instance, pool=record.pool, url=record.url)
        self._put[record.instance] = (record, now_s)

    async def _delete(self, instance: str) -> None:
        bucket = await self._open()
        await bucket.delete(subjects.instance_key(self._site, instance))
        del self._put[instance]
        log.info("engine no longer listed", instance=instance)

    async def _open(self) -> Bucket:
        if self._bucket is None:
            self._bucket = await self._bus.bucket(subjects.BUCKET_INSTANCES)
        return self._bucket
