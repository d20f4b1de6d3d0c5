"""One engine as the agent follows it: readings, liveness, generation, cached blocks."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import aiohttp
import structlog

from node_agent.kv_stream import KvStream
from node_agent.policy.engine_spec import EngineSpec
from node_agent.policy.kv_index import KvIndex
from node_agent.policy.metrics import Readings, restarted
from node_agent.scraper import scrape
from node_agent.settings import NodeAgentSettings
from tokenfleet import subjects
from tokenfleet.blocks import BlockHasher
from tokenfleet.bus import Bus
from tokenfleet.clock import Clock
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState, KvDelta, KvSnapshot
from tokenfleet.errors import UnavailableError

UNLISTED_AFTER_S = 5.0
"""An engine that cannot be reached for longer leaves the registry."""
KV_INTERVAL_S = 0.05
"""KV deltas are coalesced over this time."""
KV_HEARTBEAT_S = 5.0
"""A reader that missed the last delta of a quiet engine finds out within this time."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the engines of a node share."""

    settings: NodeAgentSettings
    bus: Bus
    clock: Clock
    session: aiohttp.ClientSession
    hasher: BlockHasher


class Engine:
    """Follows one engine process from `start` to `stop`; a process that replaces it begins a new generation."""

    def __init__(self, instance: str, spec: EngineSpec, context: NodeContext) -> None:
        self.instance = instance
        self.spec = spec
        self.generation = context.clock.unix_ns()
        self.draining = False
        self.reachable = False
        self.scrape_errors = 0
        self.stream: KvStream | None = None
        self.index = KvIndex(
            instance,
            self.generation,
            context.hasher,
            spec.block_size_tokens,
            sources=len(spec.kv_endpoints),
            offloaded_limit_blocks=spec.offloaded_limit_blocks,
        )
        self._context = context
        self._log = structlog.get_logger(__name__).bind(instance=instance)
        self._profile = spec.resolved_profile()
        self._readings = Readings()
        self._reached_s: float | None = None
        self._delta_s = context.clock.wall_s()
        self._tasks: list[asyncio.Task[None]] = []
        self._stop_serving: Callable[[], Awaitable[None]] | None = None

    @property
    def listed(self) -> bool:
        """Whether the registry should name it: it has been reached, and not long ago."""
        return self._reached_s is not None and self.scrape_age_s <= UNLISTED_AFTER_S

    @property
    def scrape_age_s(self) -> float:
        """Wall seconds since it was last reached; infinite before the first time."""
        return float("inf") if self._reached_s is None else self._context.clock.wall_s() - self._reached_s

    @property
    def record(self) -> InstanceRecord:
        settings = self._context.settings
        return InstanceRecord(
            instance=self.instance,
            node=settings.node,
            site=settings.site,
            model=self.spec.model,
            version=self.spec.version,
            url=self.spec.url,
            generation=self.generation,
            profile=self._profile,
            block_size_tokens=self.spec.block_size_tokens,
            kv_events=bool(self.spec.kv_endpoints),
            draining=self.draining,
            tokens_per_chunk=self.spec.tokens_per_chunk,
            adapters=self.spec.adapters,
            region=settings.region,
        )

    def start(self) -> None:
        self._spawn(self._observe_forever())
        if self.spec.kv_endpoints:
            self.stream = KvStream(self.index, self.spec.kv_endpoints)
            self._spawn(self._follow_blocks_forever(self.stream))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._stop_serving is not None:
            await self._stop_serving()
        if self.stream is not None:
            self.stream.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine))

    # -- readings

    async def _observe_forever(self) -> None:
        clock, interval_s = self._context.clock, self._context.settings.state_interval_s
        next_s = clock.wall_s()
        while True:
            try:
                await self._observe()
            except Exception:
                self._log.exception("engine not read; trying again")
            # After a slow reading the next one follows at once; readings that were missed are not made up for.
            now_s = clock.wall_s()
            next_s = max(next_s + interval_s, now_s)
            await asyncio.sleep(next_s - now_s)

    async def _observe(self) -> None:
        context = self._context
        try:
            readings = await scrape(context.session, self.spec.url, context.settings.scrape_timeout_s)
        except UnavailableError as error:
            self._lost(error)
            readings = Readings()
        else:
            self._reached(readings)
        state = self._state(readings)
        subject = subjects.node(context.settings.site, self.instance, "state")
        await context.bus.publish(subject, state, codec="msgpack")

    def _lost(self, error: UnavailableError) -> None:
        self.scrape_errors += 1
        if self.reachable:
            self._log.warning("engine unreachable", error=str(error))
        self.reachable = False

    def _reached(self, readings: Readings) -> None:
        if restarted(self._readings, readings):
            self.generation = self._context.clock.unix_ns()
            self._log.info("engine restarted", generation=self.generation)
            if self.stream is not None:
                self.stream.restart(self.generation)
        if not self.reachable:
            self._log.info("engine reached", url=self.spec.url, generation=self.generation)
        self.reachable = True
        self._readings = readings
        self._reached_s = self._context.clock.wall_s()

    def _state(self, readings: Readings) -> InstanceState:
        return InstanceState(
            instance=self.instance,
            generation=self.generation,
            pool=subjects.pool_name(self.spec.model, self.spec.version),
            site=self._context.settings.site,
            time_ns=self._context.clock.unix_ns(),
            reachable=self.reachable,
            waiting=readings.waiting,
            running=readings.running,
            kv_usage=readings.kv_usage,
            prefix_queries_tokens=readings.prefix_queries_tokens,
            prefix_hits_tokens=readings.prefix_hits_tokens,
            prompt_tokens=readings.prompt_tokens,
            generation_tokens=readings.generation_tokens,
            preemptions=readings.preemptions,
        )

    # -- cached blocks

    async def _follow_blocks_forever(self, stream: KvStream) -> None:
        subject = subjects.node(self._context.settings.site, self.instance, "snapshot")
        while True:
            try:
                if self._stop_serving is None:
                    self._stop_serving = await self._context.bus.serve(subject, dict, self._snapshot)
                await stream.poll()
                await self._publish_deltas()
            except Exception:
                self._log.exception("kv events not followed; trying again")
            await asyncio.sleep(KV_INTERVAL_S)

    async def _publish_deltas(self) -> None:
        now_s = self._context.clock.wall_s()
        deltas = self.index.deltas(heartbeat=now_s - self._delta_s >= KV_HEARTBEAT_S)
        if deltas:
            self._delta_s = now_s
            await self._publish_kv(deltas)

    async def _snapshot(self, _: dict[str, Any]) -> KvSnapshot:
        deltas, snapshot = self.index.deltas(), self.index.snapshot()
        await self._publish_kv(deltas)
        return snapshot

    async def _publish_kv(self, deltas: list[KvDelta]) -> None:
        subject = subjects.node(self._context.settings.site, self.instance, "kv")
        for delta in deltas:
            await self._context.bus.publish(subject, delta, codec="msgpack")
