"""Feeds the prefix index from the node agents' KV deltas and snapshots."""

import asyncio

import structlog

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.clock import Clock
from tokenfleet.contracts.fleet import IndexQuality, KvDelta, KvSnapshot
from tokenfleet.errors import TokenFleetError
from tokenpilot.policy.kv_follower import KvFollower
from tokenpilot.policy.prefix_index import PrefixIndex

log = structlog.get_logger(__name__)

RETRY_S = 1.0
SWEEP_PAUSE_S = 0.01
"""Between two slices of about a millisecond, so that a sweep takes a tenth of the time there is."""


class KvSync:
    """One follower per instance with KV events."""

    def __init__(self, bus: Bus, site: str, index: PrefixIndex, clock: Clock) -> None:
        self._bus = bus
        self._site = site
        self._index = index
        self._clock = clock
        self._followers: dict[str, KvFollower] = {}
        self.snapshots = 0
        """Snapshots fetched: one per instance that joined late, restarted or lost deltas."""

    async def start(self) -> None:
        await self._bus.subscribe(
            subjects.nodes(self._site, "kv"), KvDelta, self._delta, codec="msgpack", ordered=True
        )

    def joined(self, instance: str) -> None:
        """An instance with KV events is registered: fetch what it holds already."""
        if instance not in self._followers:
            follower = self._followers[instance] = KvFollower(instance, waiting_for_snapshot=True)
            self._bus.spawn(self._fetch(follower))

    def left(self, instance: str) -> None:
        """The instance is gone, and its blocks with it."""
        self._followers.pop(instance, None)
        self._index.drop(instance)

    def quality(self, instance: str) -> IndexQuality:
        """How far to trust what the index says of an instance; without KV events it is only assumed."""
        follower = self._followers.get(instance)
        return "approximate" if follower is None else follower.quality(self._clock.wall_s())

    async def sweep(self) -> None:
        """Free what instances that left or restarted held. To be called about once a second."""
        more = self._index.sweep()
        while more:
            await asyncio.sleep(SWEEP_PAUSE_S)
            more = self._index.sweep()

    async def _delta(self, delta: KvDelta, _: Delivery) -> None:
        follower = self._followers.get(delta.instance)
        if follower is not None and follower.delta(self._index, delta, self._clock.wall_s()):
            self._bus.spawn(self._fetch(follower))

    async def _fetch(self, follower: KvFollower) -> None:
        """Fetch snapshots until one is in place, or the instance has left."""
        subject = subjects.node(self._site, follower.instance, "snapshot")
        while self._follows(follower):
            try:
                snapshot = await self._bus.request(subject, {}, KvSnapshot, timeout_s=5.0)
            except TokenFleetError as error:
                log.warning("no KV snapshot; trying again", instance=follower.instance, error=str(error))
            else:
                await self._load(follower, snapshot)
                if not follower.waiting_for_snapshot:
                    return
            await asyncio.sleep(RETRY_S)

    async def _load(self, follower: KvFollower, snapshot: KvSnapshot) -> None:
        if not self._follows(follower):
            return
        for _ in follower.loading(self._index, snapshot, self._clock.wall_s()):
            await asyncio.sleep(0)
            if not self._follows(follower):
                return
        self.snapshots += 1

    def _follows(self, follower: KvFollower) -> bool:
        return self._followers.get(follower.instance) is follower
