"""Feeds the prefix index from the node agents' KV deltas and snapshots."""

import asyncio

import structlog

from tokenfleet import subjects
from tokenfleet.bus import Bus, Delivery
from tokenfleet.contracts.fleet import KvDelta, KvSnapshot
from tokenfleet.errors import TokenFleetError
from tokenpilot.policy.kv_follower import KvFollower
from tokenpilot.policy.prefix_index import PrefixIndex

log = structlog.get_logger(__name__)

RETRY_S = 1.0


class KvSync:
    """One follower per instance with KV events."""

    def __init__(self, bus: Bus, site: str, index: PrefixIndex) -> None:
        self._bus = bus
        self._site = site
        self._index = index
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

    async def _delta(self, delta: KvDelta, _: Delivery) -> None:
        follower = self._followers.get(delta.instance)
        if follower is not None and follower.delta(self._index, delta):
            self._bus.spawn(self._fetch(follower))

    async def _fetch(self, follower: KvFollower) -> None:
        subject = subjects.node(self._site, follower.instance, "snapshot")
        try:
            snapshot = await self._bus.request(subject, {}, KvSnapshot, timeout_s=5.0)
        except TokenFleetError as error:
            log.warning("no KV snapshot; trying again", instance=follower.instance, error=str(error))
            await asyncio.sleep(RETRY_S)
            if self._followers.get(follower.instance) is follower:
                self._bus.spawn(self._fetch(follower))
            return
        if self._followers.get(follower.instance) is follower:
            follower.snapshot(self._index, snapshot)
            self.snapshots += 1
